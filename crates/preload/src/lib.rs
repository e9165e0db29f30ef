//! `libunderpass.so`: the libc calls by which a program reaches a TCP socket.
