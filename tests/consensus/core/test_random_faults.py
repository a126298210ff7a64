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
        change_members(rig)


def change_members(rig: CoreRig) -> None:
    """Whoever leads, or believes so, is asked to change a member."""
    for leader in rig.leaders:
        new, expected = _changed(rig, leader), leader.raft.committed_config.config_index
        leader.ask(partial(RigServer.change_config, new=new, expected_config_index=expected))


def _changed(rig: CoreRig, leader: RigServer) -> RaftConfig:
    members = {member.uuid: member for member in leader.raft.committed_config.members}
    uuid = rig.rng.choice(list(rig.servers))
    member, is_promoted = members.pop(uuid, None), rig.rng.random() < 0.7
    if member is None:
        members[uuid] = Member(uuid, MemberType.PRE_VOTER, f"{uuid}:7050", promote=is_promoted)
    elif member.member_type is MemberType.PRE_VOTER:
        if not member.promote:
            members[uuid] = Member(uuid, MemberType.VOTER, member.address)
    elif rig.rng.random() < 0.3:
        members[uuid] = Member(uuid, MemberType.PRE_VOTER, member.address, promote=is_promoted)
    return RaftConfig(0, tuple(members.values()))


def disturb_changes(rig: CoreRig, known: dict[str, int]) -> None:
    """Changes and what goes wrong with them: links are cut, and servers stopped or crashed, in the middle of each."""
    rng = rig.rng
    change_members(rig)
    rig.run(rng.random() * 0.1)
    if rng.random() < 0.3:
        for leader in rig.leaders:
            leader.ask(RigServer.abort_config_change)
    for _ in range(rng.randint(0, 2)):
        server: RigServer = rng.choice(list(rig.servers.values()))
        dice = rng.random()
        if server.raft is None:
            server.start(rig.config, known.get(server.uuid, 0))
        elif dice < 0.25:
            known[server.uuid] = server.crash()
        elif dice < 0.4:
            rig.pause(server.uuid, rng.random() * 5.0)
        elif dice < 0.7:
            left = rng.sample(list(rig.servers), rng.randint(1, len(rig.servers) - 1))
            rig.separate(left, [uuid for uuid in rig.servers if uuid not in left])
        elif dice < 0.8:
            rig.cut.add((server.uuid, rng.choice(list(rig.servers))))
        else:
            rig.heal()
    if rng.random() < 0.3:
        for leader in rig.leaders:  # whoever is not needed by the members before is needed by those after, or neither
            rig.cut = {pair for pair in rig.cut if leader.uuid not in pair}
            for uuid in leader.raft.active_config.voters:
                if rng.random() < 0.5:
                    rig.separate([leader.uuid], [uuid])
    for leader in rig.leaders:
        leader.ask(RigServer.propose)
        leader.ask(RigServer.read)
    if rng.random() < 0.3:
        rig.heal()


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


def run_changes(seed: int, *, servers: int, spares: int, steps: int = 40) -> CoreRig:
    faults = RigFaults(lose=0.05 * (seed % 3), double=0.05, delay_s=0.02 * (1 + seed % 4), sync_s=0.1 * (seed % 4))
    rig = CoreRig(seed, servers=servers, spares=spares, faults=faults)
    rig.start()
    rig.run(1.0)
    known: dict[str, int] = {}
    for _ in range(steps):
        rig.run(rig.rng.random() * 2.0)
        disturb_changes(rig, known)
    heal_and_converge(rig)
    return rig


@pytest.mark.parametrize("seed", range(3000, 3040))
def test_groups_whose_every_change_is_disturbed_stay_safe_and_live_after_it(seed: int) -> None:
    run_changes(seed, servers=1 + seed % 4, spares=2)


def test_the_disturbed_changes_are_committed_and_undone() -> None:
    rigs = [run_changes(seed, servers=3, spares=2) for seed in range(4000, 4006)]
    assert sum(rig.observer.undone for rig in rigs) > 5
    assert sum(max(c.raft.committed_config.config_index for c in rig.servers.values()) for rig in rigs) > 100


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = run_seed(7, servers=3), run_seed(7, servers=3)
    assert first.observer.committed == second.observer.committed
    assert first.describe() == second.describe()
