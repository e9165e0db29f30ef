# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_underpass_global_optspecs
    string join \n h/help V/version
end

function __fish_underpass_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_underpass_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_underpass_using_subcommand
    set -l cmd (__fish_underpass_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c underpass -n "__fish_underpass_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_needs_command" -s V -l version -d 'Print version'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "run" -d 'Run a program, its TCP connections on the fast path where possible'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "doctor" -d 'Say whether a program can go fast here, and what to do where it cannot'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "diff" -d 'Run a program on kernel TCP and under Underpass, and compare what it does'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "policy" -d 'Say what the administrator\'s policy lets programs do'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "ss" -d 'List the connections of programs that run under Underpass, and the path of each'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "top" -d 'Watch the connections of programs that run under Underpass'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "metrics" -d 'Tell Prometheus how the connections of programs under Underpass fare'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "pin" -d 'Move a live connection to kernel TCP, and hold it there'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "unpin" -d 'Let a connection go up again that `underpass pin` has moved to kernel TCP'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "capture" -d 'Write what fast connections carry to a file for Wireshark, as tcpdump does for kernel TCP'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "bench" -d 'Measure kernel TCP against Underpass with unmodified programs'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "demo" -d 'Show within three minutes what to expect, and leave a record and a report'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "report" -d 'Draw records as one HTML page, with the figures of the papers beside them'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "advise" -d 'Say from records where protocol work should run, what that gains, and how sure that is'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "survey" -d 'Measure throughput and latency between every ordered pair of endpoints'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "agent" -d 'Take part in a survey: measure what `underpass survey` asks for'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "config" -d 'Show the effective configuration and where each value came from'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "completions" -d 'Print the completions for a shell'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "man" -d 'Print the manual page, or write all pages to a directory'
complete -c underpass -n "__fish_underpass_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c underpass -n "__fish_underpass_using_subcommand run" -l stats -d 'At the end, say for each process how its connections fared and why some stayed on kernel TCP' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand run" -l config -d 'Read this configuration file instead of the usual one' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand run" -l set -d 'Set one value, before environment and file; `underpass config` lists them' -r -f -a "mode=on\t''
mode=off\t''
go_up_messages=8\t''
go_up_bytes=16384\t''
ring_bytes=1048576\t''
spin_us=100\t''
doze_us=10000\t''
broker=/run/underpass/broker.sock\t''
io_uring=auto\t''
io_uring=deny\t''
io_uring=allow\t''"
complete -c underpass -n "__fish_underpass_using_subcommand run" -l json -d 'Write these statistics as JSON (implies --stats)'
complete -c underpass -n "__fish_underpass_using_subcommand run" -s q -l quiet -d 'Do not say when a program cannot be accelerated'
complete -c underpass -n "__fish_underpass_using_subcommand run" -l at-once -d 'Let connections go fast from their first byte, short ones too (go_up_messages=0, go_up_bytes=0)'
complete -c underpass -n "__fish_underpass_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_using_subcommand doctor" -l config -d 'Read this configuration file instead of the usual one' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand doctor" -l set -d 'Set one value, before environment and file; `underpass config` lists them' -r -f -a "mode=on\t''
mode=off\t''
go_up_messages=8\t''
go_up_bytes=16384\t''
ring_bytes=1048576\t''
spin_us=100\t''
doze_us=10000\t''
broker=/run/underpass/broker.sock\t''
io_uring=auto\t''
io_uring=deny\t''
io_uring=allow\t''"
complete -c underpass -n "__fish_underpass_using_subcommand doctor" -l json -d 'As JSON'
complete -c underpass -n "__fish_underpass_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_using_subcommand diff" -l rounds -d 'Runs on each side' -r
complete -c underpass -n "__fish_underpass_using_subcommand diff" -l ignore -d 'Leave out lines that match, because they differ from run to run (times, process numbers); may be repeated' -r
complete -c underpass -n "__fish_underpass_using_subcommand diff" -l timeout -d 'End a run that takes longer' -r
complete -c underpass -n "__fish_underpass_using_subcommand diff" -l config -d 'Read this configuration file instead of the usual one' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand diff" -l set -d 'Set one value, before environment and file; `underpass config` lists them' -r -f -a "mode=on\t''
mode=off\t''
go_up_messages=8\t''
go_up_bytes=16384\t''
ring_bytes=1048576\t''
spin_us=100\t''
doze_us=10000\t''
broker=/run/underpass/broker.sock\t''
io_uring=auto\t''
io_uring=deny\t''
io_uring=allow\t''"
complete -c underpass -n "__fish_underpass_using_subcommand diff" -l json -d 'As JSON'
complete -c underpass -n "__fish_underpass_using_subcommand diff" -l at-once -d 'Let connections go fast from their first byte, short ones too (go_up_messages=0, go_up_bytes=0)'
complete -c underpass -n "__fish_underpass_using_subcommand diff" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_using_subcommand policy; and not __fish_seen_subcommand_from explain" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_using_subcommand policy; and not __fish_seen_subcommand_from explain" -f -a "explain" -d 'Say whether connections between two processes may be fast, and what decides that'
complete -c underpass -n "__fish_underpass_using_subcommand policy; and __fish_seen_subcommand_from explain" -l policy -d 'The policy, in place of /etc/underpass/policy.toml' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand policy; and __fish_seen_subcommand_from explain" -l config -d 'Read this configuration file instead of the usual one' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand policy; and __fish_seen_subcommand_from explain" -l set -d 'Set one value, before environment and file; `underpass config` lists them' -r
complete -c underpass -n "__fish_underpass_using_subcommand policy; and __fish_seen_subcommand_from explain" -l json -d 'As JSON'
complete -c underpass -n "__fish_underpass_using_subcommand policy; and __fish_seen_subcommand_from explain" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_using_subcommand ss" -l stats -d 'Show what `run --stats` has counted so far, by process, instead of the connections'
complete -c underpass -n "__fish_underpass_using_subcommand ss" -l json -d 'As JSON, with the sizes in bytes'
complete -c underpass -n "__fish_underpass_using_subcommand ss" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_using_subcommand top" -s i -l interval -d 'Time from one look to the next, from 0.1 to 3600' -r
complete -c underpass -n "__fish_underpass_using_subcommand top" -l once -d 'Print the rates of one interval as a table, and end; needs no terminal'
complete -c underpass -n "__fish_underpass_using_subcommand top" -l json -d 'As JSON (implies --once)'
complete -c underpass -n "__fish_underpass_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_using_subcommand metrics" -l file -d 'Write them to this file again and again, for the textfile collector of node_exporter, which wants .prom at the end' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand metrics" -l listen -d 'Answer HTTP at this loopback address and port, under /metrics' -r
complete -c underpass -n "__fish_underpass_using_subcommand metrics" -s i -l interval -d 'Time from one look to the next, from 0.1 to 3600 (default: 5)' -r
complete -c underpass -n "__fish_underpass_using_subcommand metrics" -l config -d 'Read this configuration file instead of the usual one' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand metrics" -l set -d 'Set one value, before environment and file; `underpass config` lists them' -r -f -a "mode=on\t''
mode=off\t''
go_up_messages=8\t''
go_up_bytes=16384\t''
ring_bytes=1048576\t''
spin_us=100\t''
doze_us=10000\t''
broker=/run/underpass/broker.sock\t''
io_uring=auto\t''
io_uring=deny\t''
io_uring=allow\t''"
complete -c underpass -n "__fish_underpass_using_subcommand metrics" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_using_subcommand pin" -l wait -d 'Longest wait for both directions to go down' -r
complete -c underpass -n "__fish_underpass_using_subcommand pin" -l all -d 'All connections of the process'
complete -c underpass -n "__fish_underpass_using_subcommand pin" -l json -d 'As JSON'
complete -c underpass -n "__fish_underpass_using_subcommand pin" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_using_subcommand unpin" -l wait -d 'Longest wait for both directions to go up' -r
complete -c underpass -n "__fish_underpass_using_subcommand unpin" -l all -d 'All connections of the process'
complete -c underpass -n "__fish_underpass_using_subcommand unpin" -l json -d 'As JSON'
complete -c underpass -n "__fish_underpass_using_subcommand unpin" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_using_subcommand capture" -s w -l write -d 'The file to write (pcapng); "-" for standard output' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand capture" -s c -l count -d 'End after so many packets' -r
complete -c underpass -n "__fish_underpass_using_subcommand capture" -l duration -d 'End after so many seconds' -r
complete -c underpass -n "__fish_underpass_using_subcommand capture" -l buffer -d 'Size of the buffer, in MiB, rounded up to a power of two' -r
complete -c underpass -n "__fish_underpass_using_subcommand capture" -l json -d 'Print the totals as JSON at the end, on standard error'
complete -c underpass -n "__fish_underpass_using_subcommand capture" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_using_subcommand bench" -l only -d 'Only figures with this text in their name' -r
complete -c underpass -n "__fish_underpass_using_subcommand bench" -l json -d 'Write the record, with every sample and the host, as JSON' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand bench" -l csv -d 'Write every sample as a line of CSV' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand bench" -l html -d 'Write a report with plots as one HTML file' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand bench" -l samples -d 'Samples of each side (default: 5, of checksum 10, of demo 3, with --quick 1)' -r
complete -c underpass -n "__fish_underpass_using_subcommand bench" -l config -d 'Read this configuration file instead of the usual one' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand bench" -l set -d 'Set one value, before environment and file; `underpass config` lists them' -r -f -a "mode=on\t''
mode=off\t''
go_up_messages=8\t''
go_up_bytes=16384\t''
ring_bytes=1048576\t''
spin_us=100\t''
doze_us=10000\t''
broker=/run/underpass/broker.sock\t''
io_uring=auto\t''
io_uring=deny\t''
io_uring=allow\t''"
complete -c underpass -n "__fish_underpass_using_subcommand bench" -l gpu -d 'With checksum or all: measure a GPU by NVIDIA too, after comparing what it computes with the processor'
complete -c underpass -n "__fish_underpass_using_subcommand bench" -l quick -d 'Shorter and fewer, to see that all works; not for quoting'
complete -c underpass -n "__fish_underpass_using_subcommand bench" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_using_subcommand demo" -l output -d 'Where to write' -r -f -a "(__fish_complete_directories)"
complete -c underpass -n "__fish_underpass_using_subcommand demo" -l samples -d 'Samples of each side (default: 5, of checksum 10, of demo 3, with --quick 1)' -r
complete -c underpass -n "__fish_underpass_using_subcommand demo" -l config -d 'Read this configuration file instead of the usual one' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand demo" -l set -d 'Set one value, before environment and file; `underpass config` lists them' -r -f -a "mode=on\t''
mode=off\t''
go_up_messages=8\t''
go_up_bytes=16384\t''
ring_bytes=1048576\t''
spin_us=100\t''
doze_us=10000\t''
broker=/run/underpass/broker.sock\t''
io_uring=auto\t''
io_uring=deny\t''
io_uring=allow\t''"
complete -c underpass -n "__fish_underpass_using_subcommand demo" -l all -d 'Measure everything, as `underpass bench all` does: half an hour'
complete -c underpass -n "__fish_underpass_using_subcommand demo" -l quick -d 'Shorter and fewer, to see that all works; not for quoting'
complete -c underpass -n "__fish_underpass_using_subcommand demo" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_using_subcommand report" -s o -l output -d 'The page to write' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand report" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_using_subcommand advise" -s o -l output -d 'Write the placement to this file' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand advise" -l json -d 'With --check: write the cases, with each predicted and measured gain, as JSON' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand advise" -l record -d 'With --check: write what was measured as a record, after each experiment; what the record has from an earlier run of the same check is not measured again' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand advise" -l minutes -d 'With --check: begin no experiment when so many minutes are over; the same command with the same --record goes on' -r
complete -c underpass -n "__fish_underpass_using_subcommand advise" -l endpoints -d 'With --check: the endpoints of a survey, as for underpass survey; the endpoints of survey --local are made again without this, as root' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand advise" -l seed -d 'With --check: the seed of the order of measurements' -r
complete -c underpass -n "__fish_underpass_using_subcommand advise" -l samples -d 'Samples of each side (default: 5, of checksum 10, of demo 3, with --quick 1)' -r
complete -c underpass -n "__fish_underpass_using_subcommand advise" -l config -d 'Read this configuration file instead of the usual one' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand advise" -l set -d 'Set one value, before environment and file; `underpass config` lists them' -r -f -a "mode=on\t''
mode=off\t''
go_up_messages=8\t''
go_up_bytes=16384\t''
ring_bytes=1048576\t''
spin_us=100\t''
doze_us=10000\t''
broker=/run/underpass/broker.sock\t''
io_uring=auto\t''
io_uring=deny\t''
io_uring=allow\t''"
complete -c underpass -n "__fish_underpass_using_subcommand advise" -l check -d 'Measure the advised way against every other that can run here, at sizes between those of the records, and say how far off the predictions were; only for records of a host with the same processors'
complete -c underpass -n "__fish_underpass_using_subcommand advise" -l gpu -d 'With --check: measure a GPU by NVIDIA too'
complete -c underpass -n "__fish_underpass_using_subcommand advise" -l quick -d 'Shorter and fewer, to see that all works; not for quoting'
complete -c underpass -n "__fish_underpass_using_subcommand advise" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_using_subcommand survey" -l arm -d 'With --local: the SmartNICs\' tools are the Arm builds in this directory, under qemu-user; packaging/arm-tools makes it' -r -f -a "(__fish_complete_directories)"
complete -c underpass -n "__fish_underpass_using_subcommand survey" -l seed -d 'Seed of the order (default: a random one, or that with which an interrupted survey began)' -r
complete -c underpass -n "__fish_underpass_using_subcommand survey" -l json -d 'Where the record is written' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand survey" -l csv -d 'Write every sample as a line of CSV too' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand survey" -l local -d 'Make two hosts and two slower SmartNICs of network namespaces, and measure those for ten minutes; needs root'
complete -c underpass -n "__fish_underpass_using_subcommand survey" -l quick -d 'With --local: two minutes, to see that all works; not for quoting'
complete -c underpass -n "__fish_underpass_using_subcommand survey" -l percentiles -d 'With --local: latency by sockperf, which tells p50, p99 and p99.9 of the single exchanges; takes a quarter of an hour, with --quick two and a half minutes'
complete -c underpass -n "__fish_underpass_using_subcommand survey" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_using_subcommand agent" -l listen -d 'Where to listen; from other computers it can be reached only at an address of theirs' -r
complete -c underpass -n "__fish_underpass_using_subcommand agent" -l token -d 'The file with the token, mode 0600; it is made with a new token if it is not there' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand agent" -l arm -d 'Take the tools\' Arm builds in this directory and run them under qemu-user, as an emulated endpoint does' -r -f -a "(__fish_complete_directories)"
complete -c underpass -n "__fish_underpass_using_subcommand agent" -l ports -d 'Ports for the servers of measurements, as a firewall lets them through (default: any)' -r
complete -c underpass -n "__fish_underpass_using_subcommand agent" -l stdio -d 'Serve the program that started this one, by standard input and output; no token is needed'
complete -c underpass -n "__fish_underpass_using_subcommand agent" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_using_subcommand config" -l config -d 'Read this configuration file instead of the usual one' -r -F
complete -c underpass -n "__fish_underpass_using_subcommand config" -l set -d 'Set one value, before environment and file; `underpass config` lists them' -r -f -a "mode=on\t''
mode=off\t''
go_up_messages=8\t''
go_up_bytes=16384\t''
ring_bytes=1048576\t''
spin_us=100\t''
doze_us=10000\t''
broker=/run/underpass/broker.sock\t''
io_uring=auto\t''
io_uring=deny\t''
io_uring=allow\t''"
complete -c underpass -n "__fish_underpass_using_subcommand config" -l json -d 'As JSON'
complete -c underpass -n "__fish_underpass_using_subcommand config" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c underpass -n "__fish_underpass_using_subcommand completions" -s h -l help -d 'Print help'
complete -c underpass -n "__fish_underpass_using_subcommand man" -l output -d 'Write all pages to this directory' -r -f -a "(__fish_complete_directories)"
complete -c underpass -n "__fish_underpass_using_subcommand man" -s h -l help -d 'Print help'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "run" -d 'Run a program, its TCP connections on the fast path where possible'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "doctor" -d 'Say whether a program can go fast here, and what to do where it cannot'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "diff" -d 'Run a program on kernel TCP and under Underpass, and compare what it does'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "policy" -d 'Say what the administrator\'s policy lets programs do'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "ss" -d 'List the connections of programs that run under Underpass, and the path of each'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "top" -d 'Watch the connections of programs that run under Underpass'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "metrics" -d 'Tell Prometheus how the connections of programs under Underpass fare'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "pin" -d 'Move a live connection to kernel TCP, and hold it there'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "unpin" -d 'Let a connection go up again that `underpass pin` has moved to kernel TCP'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "capture" -d 'Write what fast connections carry to a file for Wireshark, as tcpdump does for kernel TCP'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "bench" -d 'Measure kernel TCP against Underpass with unmodified programs'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "demo" -d 'Show within three minutes what to expect, and leave a record and a report'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "report" -d 'Draw records as one HTML page, with the figures of the papers beside them'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "advise" -d 'Say from records where protocol work should run, what that gains, and how sure that is'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "survey" -d 'Measure throughput and latency between every ordered pair of endpoints'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "agent" -d 'Take part in a survey: measure what `underpass survey` asks for'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "config" -d 'Show the effective configuration and where each value came from'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "completions" -d 'Print the completions for a shell'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "man" -d 'Print the manual page, or write all pages to a directory'
complete -c underpass -n "__fish_underpass_using_subcommand help; and not __fish_seen_subcommand_from run doctor diff policy ss top metrics pin unpin capture bench demo report advise survey agent config completions man help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c underpass -n "__fish_underpass_using_subcommand help; and __fish_seen_subcommand_from policy" -f -a "explain" -d 'Say whether connections between two processes may be fast, and what decides that'
