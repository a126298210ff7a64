#!/usr/bin/env bash
# A replica's whole life, typed by hand with grpcurl, on a local cluster whose table may be written to meanwhile.
#
#   deploy/examples/replica_life.sh DIR [TABLE]
#
# DIR is a playground with four tablet servers or more, TABLE a table of it with three replicas. Started thus, a lost server
# is given up after seconds instead of minutes:
#
#   printf 'follower_unavailable_considered_failed_sec = 5\n[master]\ntserver_unresponsive_timeout_ms = 3000\n' > DIR.toml
#   kudu-py playground start --dir DIR --tservers 4 --detach --flag=--config=DIR.toml
#
# Every step asks one call of the masters and then watches. The last one kills a tablet server of the playground for good.
set -euo pipefail

DIR=${1:?"usage: $0 DIR [TABLE]"}
TABLE=${2:-}
GRPCURL=${GRPCURL:-grpcurl}
PYTHON=${PYTHON:-python3}
PATIENCE_S=${PATIENCE_S:-120}

# -- The calls -----------------------------------------------------------------------------------------------------------------

# master METHOD REQUEST: the answer as JSON.
master() { "$GRPCURL" -plaintext -emit-defaults -d "$2" "$MASTER" "kudu.master.v1.MasterService/$1"; }

# pick EXPRESSION: of the JSON on standard input, called `a`, in Python; lists a word each.
pick() {
    "$PYTHON" -c 'import json, sys
a = json.load(sys.stdin)
found = eval(sys.argv[1])
print(*found if isinstance(found, list) else [found])' "$1"
}

playground() { pick "$1" < "$DIR/playground.json"; }
tablet() { master GetTabletLocations "{\"tablet_ids\": [\"$TABLET\"]}" | pick "$1"; }
voters() { tablet '[r["ts_uuid"] for r in a["tablet_locations"][0]["replicas"] if r["member_type"] == "VOTER"]'; }
members() { tablet '[r["ts_uuid"] for r in a["tablet_locations"][0]["replicas"]]'; }
leader() { tablet '[r["ts_uuid"] for r in a["tablet_locations"][0]["replicas"] if r["role"] == "LEADER" and r["is_alive"]]'; }
servers() { master ListTabletServers '{}' | pick "[s['uuid'] for s in a['servers'] if $1]"; }
followers() { tablet '[r["ts_uuid"] for r in a["tablet_locations"][0]["replicas"] if r["role"] == "FOLLOWER"]'; }
is_in() { [[ " $2 " == *" $1 "* ]]; }

# outside: a live server without a replica of the tablet.
outside() {
    local server have
    have=$(members)
    for server in $(servers 's["state"] == "LIVE" and s["mode"] == "NORMAL"'); do
        is_in "$server" "$have" || { echo "$server"; return; }
    done
}

say() { printf '\n== %s\n' "$*"; }

# watch WHAT COMMAND...: until the command succeeds.
watch() {
    local what=$1 until=$((SECONDS + PATIENCE_S))
    shift
    until "$@"; do
        if ((SECONDS > until)); then
            echo "waited $PATIENCE_S s in vain: $what" >&2
            exit 1
        fi
        sleep 0.3
    done
    echo "   $what: yes"
}

shown=
# ended OPERATION: whether it is DONE; one that failed ends the script.
ended() {
    local state
    state=$(master GetOperation "{\"operation_id\": \"$1\"}" | pick \
        '[a["operation"]["state"], a["operation"]["steps_done"], "of", a["operation"]["steps_total"], a["operation"]["progress"]]')
    [[ $state == "$shown" ]] || echo "   $state"
    shown=$state
    case $state in
    DONE*) return 0 ;;
    FAILED* | CANCELLED*) exit 1 ;;
    *) return 1 ;;
    esac
}

is_voter() { is_in "$1" "$(voters)"; }
has_left() { ! is_in "$1" "$(members)"; }
has_other_leader() { [[ -n $(leader) && $(leader) != "$1" ]]; }
has_voters() { [[ $(voters | wc -w) -eq $1 && $(members | wc -w) -eq $1 ]]; }
# Whether no tablet of any table has a replica on a server.
is_empty() {
    master ListTables '{}' | pick '[t["name"] for t in a["tables"]]' | tr ' ' '\n' | while read -r name; do
        [[ -z $name ]] || ! master GetTableLocations "{\"table_name\": \"$name\"}" | grep "$1" > /dev/null || exit 1
    done
}

# -- The life --------------------------------------------------------------------------------------------------------------------

MASTER=$(playground 'a["masters"][0]["rpc_address"]')
TABLE=${TABLE:-$(master ListTables '{}' | pick 'a["tables"][0]["name"]')}
TABLET=$(master GetTableLocations "{\"table_name\": \"$TABLE\"}" | pick 'a["tablet_locations"][0]["tablet_id"]')
say "tablet $TABLET of table $TABLE has its voters on $(voters)"

FOURTH=$(outside)
say "AddReplica: $FOURTH joins as PRE_VOTER, copies the tablet, and is promoted once it keeps up"
master AddReplica "{\"tablet_id\": \"$TABLET\", \"ts_uuid\": \"$FOURTH\"}" | pick \
    '[m["uuid"][:6] + ":" + m["member_type"] for m in a["config"]["members"]]'
watch "$FOURTH is a VOTER" is_voter "$FOURTH"

FIRST=$(leader)
ADDRESS=$(playground "next(t['rpc_address'] for t in a['tservers'] if t['uuid'] == '$FIRST')")
say "ChangeConfig at the leader, $FIRST: it will not remove itself, hands over, and says so"
if "$GRPCURL" -plaintext -d "{\"dest_uuid\": \"$FIRST\", \"tablet_id\": \"$TABLET\", \"type\": \"REMOVE_SERVER\", \"server\": {\"uuid\": \"$FIRST\"}}" \
    "$ADDRESS" kudu.consensus.v1.ConsensusService/ChangeConfig > "$DIR/step_down.txt" 2>&1; then
    echo "a leader removed itself" >&2
    exit 1
fi
grep -m1 -o 'STEPPING_DOWN: .*' "$DIR/step_down.txt"
watch "another one leads" has_other_leader "$FIRST"

SECOND=$(leader)
say "RemoveReplica of the leader, $SECOND: the master follows STEPPING_DOWN by itself"
master RemoveReplica "{\"tablet_id\": \"$TABLET\", \"ts_uuid\": \"$SECOND\"}" | pick \
    '[m["uuid"][:6] + ":" + m["member_type"] for m in a["config"]["members"]]'
watch "three voters without $SECOND" has_left "$SECOND"

FROM=$(followers | cut -d' ' -f1)
say "MoveReplica: from $FROM to $SECOND, where the removed replica's tombstone lies"
MOVE=$(master MoveReplica "{\"tablet_id\": \"$TABLET\", \"from_ts_uuid\": \"$FROM\", \"to_ts_uuid\": \"$SECOND\"}" | pick 'a["operation_id"]')
watch "operation $MOVE is done" ended "$MOVE"
is_voter "$SECOND" && has_left "$FROM"

say "RetireTabletServer: everything leaves $SECOND"
RETIRE=$(master RetireTabletServer "{\"ts_uuid\": \"$SECOND\"}" | pick 'a["operation_id"]')
watch "operation $RETIRE is done" ended "$RETIRE"
watch "no tablet is on $SECOND" is_empty "$SECOND"
is_in "$SECOND" "$(servers 's["mode"] == "RETIRED"')"
echo "   $SECOND is RETIRED; it is taken back, since a server is lost next"
master ChangeTabletServerMode "{\"ts_uuid\": \"$SECOND\", \"mode\": \"NORMAL\"}" > /dev/null

LOST=$(leader)
PID=$(playground "next(t['pid'] for t in a['tservers'] if t['uuid'] == '$LOST')")
say "kill -9 of $LOST (pid $PID), which never comes back: its replicas are built again elsewhere"
kill -9 "$PID"
watch "no tablet counts on $LOST" is_empty "$LOST"
watch "three voters" has_voters 3
echo "   voters: $(voters)"

say "the life is over; operations, newest first:"
master ListOperations '{"include_ended": true}' | pick '[o["kind"] + ":" + o["state"] for o in a["operations"]]'
