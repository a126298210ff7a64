"""How replicas and leaders are spread, and what the masters' rebalancer would do, as `cluster rebalance` shows it."""

from __future__ import annotations

from kudu_py.cli.console import make_console, plain_table
from kudu_py.common.counted import counted
from kudu_py.pb import master_pb2


def balance_json(balance: master_pb2.GetBalanceResponse) -> dict[str, object]:
    """For programs; keys are stable."""
    return {
        "enabled": balance.enabled,
        "holds": list(balance.holds),
        "tservers": [
            {
                "uuid": server.ts_uuid,
                "fault_domain": server.fault_domain,
                "mode": master_pb2.TabletServerMode.Name(server.mode),
                "live": server.is_live,
                "replicas": server.replicas,
                "leaders": server.leaders,
            }
            for server in balance.servers
        ],
        "steps": [
            {
                "tablet": step.tablet_id,
                "table": step.table_name,
                "from": step.from_ts_uuid,
                "to": step.to_ts_uuid,
                "leadership_only": step.leadership_only,
                "reason": step.reason,
            }
            for step in balance.steps
        ],
    }


def print_balance(balance: master_pb2.GetBalanceResponse) -> None:
    """For people: servers, then steps, then what becomes of the steps."""
    console = make_console()
    servers = [
        (
            server.ts_uuid,
            server.fault_domain,
            "LIVE" if server.is_live else "DEAD",
            master_pb2.TabletServerMode.Name(server.mode),
            str(server.replicas),
            str(server.leaders),
        )
        for server in balance.servers
    ]
    titles = ("UUID", "DOMAIN", "STATE", "MODE", "REPLICAS", "LEADERS")
    console.print(plain_table(titles, servers, numbers=("REPLICAS", "LEADERS")))
    if balance.steps:
        steps = [
            (
                step.tablet_id,
                step.table_name,
                "leadership" if step.leadership_only else "replica",
                step.from_ts_uuid,
                step.to_ts_uuid,
                step.reason,
            )
            for step in balance.steps
        ]
        console.print()
        console.print(plain_table(("TABLET", "TABLE", "WHAT", "FROM", "TO", "WHY"), steps))
    for hold in balance.holds:
        console.print(f"held back: {hold}", markup=False)
    console.print(verdict_text(balance))


def verdict_text(balance: master_pb2.GetBalanceResponse) -> str:
    """Whether the cluster is balanced, and whether somebody takes care of it."""
    if not balance.steps and balance.holds:
        return "nothing is moved as long as that holds"
    if not balance.steps:
        return "balanced: there is no step to take"
    steps = counted(len(balance.steps), "step")
    if balance.enabled:
        return f"{steps} to take; the masters take them, a few at a time"
    return f"{steps} to take, but the rebalancer is off (--auto_rebalancing_enabled of the masters)"
