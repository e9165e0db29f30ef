//! One walk over octets for all checksums and variants: registers in rows, the last row filled up with zeros.
//!
//! A [`Vector`] is what an instruction set offers, an [`Accumulator`] what a checksum keeps of the octets that have
//! gone by, a [`Kind`] the checksum that comes of it. The walk may store each register as well: a copy then costs no
//! second pass.
//!
//! Lanes have 32 bits at least, in which nothing overflows because sums are joined after each stretch.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod sse2;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
pub(crate) use neon::Neon;
pub(crate) use scalar::Scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) use sse2::Sse2;

/// An instruction set. There is a value only where the processor has it.
pub(crate) trait Vector: Copy {
    /// Octets of a register.
    const BLOCK: usize;
    /// The octets of a register, as memory.
    type Block;
    /// A register of octets.
    type Octets: Copy;
    /// A register of sums.
    type Lanes: Copy;

    /// Whole blocks, and the octets behind the last of them.
    fn blocks(octets: &[u8]) -> (&[Self::Block], &[u8]);
    fn blocks_mut(octets: &mut [u8]) -> (&mut [Self::Block], &mut [u8]);

    fn load(self, from: &Self::Block) -> Self::Octets;
    fn store(self, octets: Self::Octets, to: &mut Self::Block);
    /// Less than a block, and zeros behind.
    fn load_part(self, from: &[u8]) -> Self::Octets;
    /// Stores as many octets of a register as there are places; they are those of `from`.
    #[inline(always)]
    fn store_part(self, from: &[u8], _: Self::Octets, to: &mut [u8]) {
        to.copy_from_slice(from);
    }

    fn zero(self) -> Self::Lanes;
    fn add(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// Adds each octet.
    fn add_octets(self, sums: Self::Lanes, octets: Self::Octets) -> Self::Lanes;
    /// Adds each octet times its distance to the end: `BLOCK` for the first, 1 for the last.
    fn add_weighted(self, sums: Self::Lanes, octets: Self::Octets) -> Self::Lanes;
    /// Adds each 16-bit word as the processor reads it, less what [`words`](Self::words) adds again.
    fn add_words(self, sums: Self::Lanes, octets: Self::Octets) -> Self::Lanes;

    /// The sum of all lanes.
    fn total(self, sums: Self::Lanes) -> u64;
    /// The sums of all lanes of four registers.
    #[inline(always)]
    fn totals(self, [a, b, c, d]: [Self::Lanes; 4]) -> [u64; 4] {
        [self.total(a), self.total(b), self.total(c), self.total(d)]
    }
    /// The sum of `count` words that were added; a number that is congruent modulo 65,535, and zero for zeros alone.
    fn words(self, sums: Self::Lanes, count: usize) -> u64;
}

/// What is kept of the octets that have gone by, in `K` chains of additions that do not wait for each other.
pub(crate) trait Accumulator<V: Vector, const K: usize> {
    /// What comes of it.
    type Sum;

    fn new(vector: V) -> Self;
    fn add(&mut self, vector: V, row: [V::Octets; K]);
    /// The sum of `len` octets, behind which the last of `rows` was filled up with zeros.
    fn conclude(self, vector: V, len: usize, rows: usize) -> Self::Sum;
}

/// A checksum, or several at once.
pub(crate) trait Kind: Copy + Default {
    /// How it is accumulated.
    type Accumulator<V: Vector, const K: usize>: Accumulator<V, K, Sum = Self>;

    /// The words of the standard.
    fn reference(octets: &[u8]) -> Self;
    /// The sum of `at` octets and `len` others behind them.
    fn join(self, next: Self, at: usize, len: usize) -> Self;
}

/// Octets from which on a copy stores to whole blocks, for which its first octets are summed by themselves.
const ALIGNED: usize = 2048;

/// Sums octets, and copies them to as many others if `COPY`. To be inlined where the instructions of `V` may be used.
#[inline(always)]
pub(crate) fn walk<V: Vector, S: Kind, const K: usize, const COPY: bool>(vector: V, from: &[u8], to: &mut [u8]) -> S {
    let row = K * V::BLOCK;
    // So many rows that the sum of all sums before each row, 255 · row · rows² / 2, stays below 2³². The sum of words,
    // which may be signed, stays below 2³¹; all other sums are smaller.
    let stretch = row * ((1 << 25) / row).isqrt();
    let mut at =
        if COPY && from.len() >= ALIGNED { to.as_ptr().align_offset(V::BLOCK) } else { from.len().min(stretch) };
    let to_at = |at| if COPY { at } else { 0 };
    let mut all = walk_stretch::<V, S, K, COPY>(vector, &from[..at], &mut to[..to_at(at)]);
    while at < from.len() {
        let end = from.len().min(at + stretch);
        let next = walk_stretch::<V, S, K, COPY>(vector, &from[at..end], &mut to[to_at(at)..to_at(end)]);
        all = all.join(next, at, end - at);
        at = end;
    }
    all
}

#[inline(always)]
fn walk_stretch<V: Vector, S: Kind, const K: usize, const COPY: bool>(vector: V, from: &[u8], to: &mut [u8]) -> S {
    let mut accumulator = S::Accumulator::<V, K>::new(vector);
    let nothing = vector.load_part(&[]);
    let (blocks, part) = V::blocks(from);
    let (rows, blocks) = blocks.as_chunks::<K>();
    let (blocks_to, part_to) = V::blocks_mut(to);
    let (rows_to, blocks_to) = blocks_to.as_chunks_mut::<K>();
    for (at, row) in rows.iter().enumerate() {
        let mut octets = [nothing; K];
        for (octets, block) in octets.iter_mut().zip(row) {
            *octets = vector.load(block);
        }
        if COPY {
            for (octets, to) in octets.into_iter().zip(&mut rows_to[at]) {
                vector.store(octets, to);
            }
        }
        accumulator.add(vector, octets);
    }
    if blocks.is_empty() && part.is_empty() {
        return accumulator.conclude(vector, from.len(), rows.len());
    }
    let mut row = [nothing; K];
    for (at, octets) in row.iter_mut().enumerate() {
        if let Some(block) = blocks.get(at) {
            *octets = vector.load(block);
            if COPY {
                vector.store(*octets, &mut blocks_to[at]);
            }
        } else if at == blocks.len() && !part.is_empty() {
            *octets = vector.load_part(part);
            if COPY {
                vector.store_part(part, *octets, part_to);
            }
        }
    }
    accumulator.add(vector, row);
    accumulator.conclude(vector, from.len(), rows.len() + 1)
}

/// Fewer than eight octets, the first at the low end.
#[inline(always)]
pub(crate) fn few(octets: &[u8]) -> u64 {
    let len = octets.len();
    // Both ends are read, which may overlap: faster than a loop, or a copy that the next load would have to wait for.
    if let (Some(&first), Some(&last)) = (octets.first_chunk(), octets.last_chunk()) {
        return u64::from(u32::from_le_bytes(first)) | u64::from(u32::from_le_bytes(last)) << (8 * (len - 4));
    }
    match *octets {
        [] => 0,
        [first, .., last] => {
            u64::from(first) | u64::from(octets[len / 2]) << (8 * (len / 2)) | u64::from(last) << (8 * (len - 1))
        }
        [only] => only.into(),
    }
}

/// Fewer than sixteen octets as two numbers, the first at the low end of the first.
#[inline(always)]
fn part(octets: &[u8]) -> [u64; 2] {
    match octets.split_first_chunk() {
        Some((first, rest)) => [u64::from_le_bytes(*first), few(rest)],
        None => [few(octets), 0],
    }
}
