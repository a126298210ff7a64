"""Groups of three and five under random faults, one seed each.

The observer asserts safety at every step; the end of each run asserts liveness.
"""

from functools import partial

import pytest

from kudu_py.consensus.core.model import Member, MemberType, RaftConfig
from kudu_py.testing.core_rig import CoreRig, RigFaults, RigServer


def heal_and_converge(rig: CoreRig) -> None:
    """All faults end: within ten election timeouts there is a leader, and everybody agrees with it."""
    rig.heal()
    rig.faults = RigFaults()
    for server in rig.servers.values():
        if server.raft is None:
            server.start(rig.config)
    rig.run(5.0)  # whatever was under way, such as a handover
    rig.run_until(lambda: bool(rig.leaders) and rig.leader.raft.has_committed_in_own_term, 8.0)
    assert rig.leader.propose().accepted, rig.describe()
    target = rig.leader.raft.last_op_id.index

    def agreed() -> bool:
        members = [rig.servers[m.uuid] for m in rig.leader.raft.active_config.members]
        return all(server.raft.commit_index >= target for server in members)

    rig.run_until(agreed, 10.0)
    assert len(rig.observer.committed) >= target
    served = rig.reads_served
    rig.leader.read()
    rig.run_until(lambda: rig.reads_served > served, 5.0)


def disturb(rig: CoreRig, known: dict[str, int], *, config_changes: bool) -> None:
    """One thing happens, drawn from the seed."""
    rng = rig.rng
    server: RigServer = rng.choice(list(rig.servers.values()))
    dice = rng.random()
    if server.raft is None:
        if dice < 0.5:
            server.start(rig.config, known.get(server.uuid, 0))
    elif dice < 0.55:
        for leader in rig.leaders:
            for _ in range(rng.randint(1, 4)):
                leader.ask(RigServer.propose)
    elif dice < 0.70:
        for leader in rig.leaders:
            leader.ask(RigServer.read)
    elif dice < 0.75:
        known[server.uuid] = server.crash()
    elif dice < 0.80:
        rig.pause(server.uuid, rng.random() * 4.0)
    elif dice < 0.84:
        if rng.random() < 0.5:
            rig.isolate(server.uuid)
        else:
            other = rng.choice(list(rig.servers))
            rig.cut.add((server.uuid, other))
    elif dice < 0.92:
        rig.heal()
    elif dice < 0.95:
        for leader in rig.leaders:
            leader.ask(RigServer.step_down)
    elif config_changes:
        for leader in rig.leaders:
            new, expected = _changed(rig, leader), leader.raft.committed_config.config_index
            leader.ask(partial(RigServer.change_config, new=new, expected_config_index=expected))


def _changed(rig: CoreRig, leader: RigServer) -> RaftConfig:
    members = {member.uuid: member for member in leader.raft.committed_config.members}
    uuid = rig.rng.choice(list(rig.servers))
    member = members.pop(uuid, None)
    if member is None:
        members[uuid] = Member(uuid, MemberType.PRE_VOTER, f"{uuid}:7050")
    elif member.member_type is MemberType.PRE_VOTER:
        members[uuid] = Member(uuid, MemberType.VOTER, member.address)
    return RaftConfig(0, tuple(members.values()))


def run_seed(seed: int, *, servers: int, spares: int = 0, steps: int = 60) -> CoreRig:
    faults = RigFaults(lose=0.1 * (seed % 3), double=0.1, delay_s=0.05 * (1 + seed % 4), sync_s=0.05 * (1 + seed % 5))
    rig = CoreRig(seed, servers=servers, spares=spares, faults=faults)
    rig.start()
    known: dict[str, int] = {}
    for _ in range(steps):
        rig.run(rig.rng.random() * 0.5)
        disturb(rig, known, config_changes=spares > 0)
    heal_and_converge(rig)
    return rig


@pytest.mark.parametrize("seed", range(80))
def test_three_replicas_stay_safe_under_faults_and_live_after_them(seed: int) -> None:
    run_seed(seed, servers=3)


@pytest.mark.parametrize("seed", range(1000, 1040))
def test_five_replicas_stay_safe_under_faults_and_live_after_them(seed: int) -> None:
    run_seed(seed, servers=5)


@pytest.mark.parametrize("seed", range(2000, 2040))
def test_changing_groups_stay_safe_under_faults_and_live_after_them(seed: int) -> None:
    run_seed(seed, servers=3, spares=2)


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = run_seed(7, servers=3), run_seed(7, servers=3)
    assert first.observer.committed == second.observer.committed
    assert first.describe() == second.describe()
