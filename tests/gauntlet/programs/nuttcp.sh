serve 5000 nuttcp -S --nofork
check sends nuttcp -T 1 127.0.0.1
check receives nuttcp -r -T 1 127.0.0.1
check "small writes" nuttcp -l 64 -T 1 127.0.0.1
check "a number of writes" nuttcp -l 4096 -n 100000 127.0.0.1
check "told every second" nuttcp -i 1 -T 2 127.0.0.1
check "held to a rate" nuttcp -R 50m -T 1 127.0.0.1
check "three streams" nuttcp -N 3 -T 1 127.0.0.1
finish
