//! The BPF program, instruction by instruction (RFC 9669): no compiler and no type information of the kernel is needed,
//! because all fields of `struct bpf_sock_ops` are part of the kernel's interface (include/uapi/linux/bpf.h).

/// `op` of `struct bpf_sock_ops` and its values `BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB` and
/// `BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB`.
const OP: i16 = 0;
const ACTIVE_ESTABLISHED: i32 = 4;
const PASSIVE_ESTABLISHED: i32 = 5;
/// Fields of `struct bpf_sock_ops`.
const RCV_NXT: i16 = 100;
const SND_NXT: i16 = 104;
/// Helpers of the kernel's by number.
const MAP_UPDATE_ELEM: i32 = 2;
const KTIME_GET_NS: i32 = 5;
const GET_SOCKET_COOKIE: i32 = 46;
/// `BPF_ANY` and `BPF_NOEXIST`.
const ANY: i32 = 0;
const NO_EXIST: i32 = 1;

/// Places on the stack, below R10. The time stands behind the numbers.
const COOKIE: i16 = -8;
const TIME: i16 = -16;
const NUMBERS: i16 = -24;

/// Operations.
const LOAD_WORD: u8 = 0x61;
const STORE_WORD: u8 = 0x63;
const STORE_DOUBLE: u8 = 0x7b;
const STORE_ZERO: u8 = 0x7a;
const LOAD_MAP: u8 = 0x18;
const MOVE: u8 = 0xbf;
const SET: u8 = 0xb7;
const ADD: u8 = 0x07;
const IF_EQUAL: u8 = 0x15;
const IF_DIFFERENT: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

const fn instruction(operation: u8, to: u8, from: u8, offset: i16, immediate: i32) -> u64 {
    (operation as u64)
        | (to as u64) << 8
        | (from as u64) << 12
        | (offset as u16 as u64) << 16
        | (immediate as u32 as u64) << 32
}

/// `map[key] = value`, with both on the stack, as [`MAP_UPDATE_ELEM`] does it.
fn update(map: i32, key: i16, value: i16, how: i32) -> [u64; 8] {
    [
        instruction(LOAD_MAP, 1, 1, 0, map),
        instruction(0, 0, 0, 0, 0),
        instruction(MOVE, 2, 10, 0, 0),
        instruction(ADD, 2, 0, 0, key.into()),
        instruction(MOVE, 3, 10, 0, 0),
        instruction(ADD, 3, 0, 0, value.into()),
        instruction(SET, 4, 0, 0, how),
        instruction(CALL, 0, 0, 0, MAP_UPDATE_ELEM),
    ]
}

/// Notes `numbers[cookie] = (snd_nxt, rcv_nxt, now)` and `holders[(snd_nxt, rcv_nxt)] = cookie`, or 0 where there is a
/// holder already, for each socket that becomes established. The maps are given by their descriptors. The time is that
/// of CLOCK_MONOTONIC, in nanoseconds.
pub fn program(numbers: i32, holders: i32) -> Vec<u64> {
    let note = [
        instruction(MOVE, 1, 6, 0, 0),
        instruction(CALL, 0, 0, 0, GET_SOCKET_COOKIE),
        instruction(STORE_DOUBLE, 10, 0, COOKIE, 0),
        instruction(LOAD_WORD, 2, 6, SND_NXT, 0),
        instruction(STORE_WORD, 10, 2, NUMBERS, 0),
        instruction(LOAD_WORD, 2, 6, RCV_NXT, 0),
        instruction(STORE_WORD, 10, 2, NUMBERS + 4, 0),
        instruction(CALL, 0, 0, 0, KTIME_GET_NS),
        instruction(STORE_DOUBLE, 10, 0, TIME, 0),
    ];
    let by_cookie = update(numbers, COOKIE, NUMBERS, ANY);
    let by_numbers = update(holders, NUMBERS, COOKIE, NO_EXIST);
    let several = update(holders, NUMBERS, COOKIE, ANY);
    let out = [instruction(SET, 0, 0, 0, 1), instruction(EXIT, 0, 0, 0, 0)];
    // Jumps count the instructions that they leave out.
    let all = (note.len() + by_cookie.len() + by_numbers.len() + 2 + several.len()) as i16;
    let begin = [
        instruction(MOVE, 6, 1, 0, 0),
        instruction(LOAD_WORD, 2, 6, OP, 0),
        instruction(IF_EQUAL, 2, 0, 1, ACTIVE_ESTABLISHED),
        instruction(IF_DIFFERENT, 2, 0, all, PASSIVE_ESTABLISHED),
    ];
    let unless_first =
        [instruction(IF_EQUAL, 0, 0, 1 + several.len() as i16, 0), instruction(STORE_ZERO, 10, 0, COOKIE, 0)];
    [&begin[..], &note, &by_cookie, &by_numbers, &unless_first, &several, &out].concat()
}
