cat >conf <<END
use chroot = no
uid = 0
gid = 0
[files]
path = $PWD/served
read only = no
END
mkdir served
for size in 0 1 1000 65536 3000000 20000000; do head -c $size /dev/urandom >served/$size; done
mkdir -p served/deep/er
seq 100000 >served/deep/er/text
serve 873 rsync --daemon --no-detach --config=conf

from=rsync://127.0.0.1/files
check list rsync "$from/"
check fetch rsync -a $from/ fetched/
check fetched diff -r served fetched
check compressed rsync -az $from/ compressed/
check "fetched compressed" diff -r served compressed
seq 50000 100000 >>fetched/deep/er/text
printf x | dd of=fetched/20000000 bs=1 seek=9000000 conv=notrunc status=none
rm fetched/1000
check "send differences" rsync -a --checksum --delete --no-whole-file fetched/ $from/
check sent diff -r served fetched
check slowly rsync -a --bwlimit=4000 $from/3000000 slow
check "fetched slowly" cmp served/3000000 slow
check "no such file" test "$(rsync $from/none . 2>/dev/null; echo $?)" = 23
finish
