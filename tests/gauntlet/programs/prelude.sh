# Each script runs in an empty folder and a network namespace of its own, so that ports are free.
set -u
servers=()

# check NAME COMMAND...: a test; what the command says is shown.
check() {
    local name=$1
    shift
    if "$@"; then echo "ok - $name"; else echo "not ok - $name"; fi
}

# serve PORT COMMAND...: starts a server and waits until it listens.
serve() {
    local port=$1
    shift
    "$@" &
    servers+=($!)
    until ss -Hltn "sport = :$port" | grep -q .; do
        kill -0 $! || exit 1
        sleep 0.05
    done
}

# Ends the servers, the last first, so that what they count is told.
finish() {
    local at
    for ((at = ${#servers[@]} - 1; at >= 0; at--)); do
        kill "${servers[at]}"
        wait "${servers[at]}"
    done
    exit 0
}

