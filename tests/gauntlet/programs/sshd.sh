mkdir -p /run/sshd
for key in host user; do ssh-keygen -q -t ed25519 -N '' -f $key; done
cat >conf <<END
Port 2222
HostKey $PWD/host
AuthorizedKeysFile $PWD/user.pub
StrictModes no
UsePAM no
PidFile none
PermitRootLogin yes
Subsystem sftp internal-sftp
END
# As root it cuts itself off from what is not its own, and its sandbox forbids most system calls.
serve 2222 /usr/sbin/sshd -D -e -f conf
options=(-F none -i user -o StrictHostKeyChecking=no -o UserKnownHostsFile=known -o LogLevel=ERROR)
there() { ssh -p 2222 "${options[@]}" 127.0.0.1 "$@"; }

head -c 20000000 /dev/urandom >data
sum=$(md5sum <data)
check command test "$(there echo hello)" = hello
check "exit code" test "$(there exit 7; echo $?)" = 7
check "data there" test "$(there md5sum <data)" = "$sum"
check "data back" test "$(there cat "$PWD/data" | md5sum)" = "$sum"
check "data there and back" test "$(there cat <data | md5sum)" = "$sum"
check terminal test "$(there -tt 'stty size >/dev/null; echo here' </dev/null | tr -d '\r')" = here
check scp scp -q -P 2222 "${options[@]}" data "127.0.0.1:$PWD/copied"
check copied cmp data copied
check sftp sftp -q -P 2222 "${options[@]}" -b <(echo "get $PWD/data got") 127.0.0.1
check got cmp data got

serve 8001 python3 -m http.server --bind 127.0.0.1 8001
serve 8002 ssh -p 2222 "${options[@]}" -N -L 8002:127.0.0.1:8001 127.0.0.1
check forwarded test "$(curl -sS http://127.0.0.1:8002/data | md5sum)" = "$sum"
serve 8003 ssh -p 2222 "${options[@]}" -N -R 8003:127.0.0.1:8001 127.0.0.1
check "forwarded back" test "$(curl -sS http://127.0.0.1:8003/data | md5sum)" = "$sum"
serve 8004 ssh -p 2222 "${options[@]}" -N -D 8004 127.0.0.1
check proxied test "$(curl -sS --proxy socks5h://127.0.0.1:8004 http://127.0.0.1:8001/data | md5sum)" = "$sum"
serve 8005 ssh -p 2222 "${options[@]}" -N -M -S control -L 8005:127.0.0.1:8001 127.0.0.1
check "one connection for several" test "$(ssh -S control x echo a; ssh -S control x echo b)" = $'a\nb'
finish
