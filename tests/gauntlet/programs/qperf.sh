serve 19765 qperf
for test in tcp_bw tcp_lat conf; do check $test qperf --time 1 127.0.0.1 $test; done
for size in 1 1000 65536 1M; do
    check "tcp_bw of $size" qperf --time 1 --msg_size $size 127.0.0.1 tcp_bw
    check "tcp_lat of $size" qperf --time 1 --msg_size $size 127.0.0.1 tcp_lat
done
finish
