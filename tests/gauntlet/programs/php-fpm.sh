mkdir pages
cat >pages/index.php <<'END'
<?php
$body = file_get_contents('php://input');
if (isset($_GET['big'])) {
    for ($i = 0; $i < (int) $_GET['big']; $i++) { echo str_repeat(chr(65 + $i % 26), 1000); if ($i % 50 == 0) flush(); }
} elseif (isset($_GET['fetch'])) {
    echo md5(file_get_contents('http://127.0.0.1:8080/index.php?big=' . $_GET['fetch']));
} else {
    echo $_SERVER['REQUEST_METHOD'], ' ', strlen($body), ' ', md5($body), "\n";
}
END
cat >fpm <<END
[global]
error_log = /dev/stderr
daemonize = no
[www]
user = root
group = root
listen = 127.0.0.1:9000
pm = static
pm.max_children = 4
END
cat >nginx <<END
daemon off;
user root;
pid $PWD/nginx.pid;
error_log stderr;
worker_processes 1;
events {}
http {
    access_log off;
    client_body_temp_path $PWD/body;
    fastcgi_temp_path $PWD/fastcgi;
    proxy_temp_path $PWD/proxy;
    client_max_body_size 100m;
    upstream php { server 127.0.0.1:9000; keepalive 4; }
    server {
        listen 127.0.0.1:8080;
        location / {
            include /etc/nginx/fastcgi_params;
            fastcgi_param SCRIPT_FILENAME $PWD/pages/index.php;
            fastcgi_keep_conn on;
            fastcgi_pass php;
        }
    }
}
END
serve 9000 /usr/sbin/php-fpm8.2 -R -n -y fpm
serve 8080 nginx -c "$PWD/nginx" -p "$PWD"
page=http://127.0.0.1:8080/index.php
expect() {
    awk -v n="$1" 'BEGIN { for (i = 0; i < n; i++) { it = sprintf("%1000s", ""); gsub(" ", sprintf("%c", 65 + i % 26), it); printf "%s", it } }' |
        md5sum | cut -d' ' -f1
}

head -c 5000000 /dev/urandom >data
check get test "$(curl -sS $page)" = "GET 0 d41d8cd98f00b204e9800998ecf8427e"
check post test "$(curl -sS -H Content-Type:application/octet-stream --data-binary @data $page)" = "POST 5000000 $(md5sum <data | cut -d' ' -f1)"
check big test "$(curl -sS "$page?big=3000" | md5sum | cut -d' ' -f1)" = "$(expect 3000)"
check "php fetches from itself" test "$(curl -sS "$page?fetch=300")" = "$(expect 300)"
check "a hundred on one connection" test "$(curl -sS "$page?[1-100]" | sort | uniq -c | tr -s ' ')" = \
    " 100 GET 0 d41d8cd98f00b204e9800998ecf8427e"
check "one that goes away" test "$(curl -sS "$page?big=20000" | head -c 1000000 | wc -c)" = 1000000
check "after that" test "$(curl -sS $page)" = "GET 0 d41d8cd98f00b204e9800998ecf8427e"
finish
