//! What is known of peers, by their addresses and by the numbers that these got.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};

/// Entries of a table of peers that any host may make longer.
pub(crate) const MOST: usize = 4096;

/// Values by keys, and by numbers from 0 on in the order in which they were added.
#[derive(Debug)]
pub struct Table<K, V, S = RandomState> {
    all: Vec<(K, V)>,
    /// When each was last looked for, by the number of looks for another entry than the one before. The entry that was
    /// found last is the youngest in any case.
    looks: Vec<u64>,
    look: u64,
    numbers: HashMap<K, u32, S>,
    /// The entry that was found last, and most likely is looked for next.
    last: u32,
}

impl<K, V, S: Default> Default for Table<K, V, S> {
    fn default() -> Table<K, V, S> {
        Table { all: Vec::new(), looks: Vec::new(), look: 0, numbers: HashMap::default(), last: 0 }
    }
}

impl<K: Copy + Eq + Hash, V, S: BuildHasher> Table<K, V, S> {
    /// The number of a key, if it is known.
    #[inline]
    pub fn find(&mut self, key: K) -> Option<u32> {
        if self.all.get(self.last as usize).is_none_or(|it| it.0 != key) {
            self.last = *self.numbers.get(&key)?;
            self.look += 1;
            self.looks[self.last as usize] = self.look;
        }
        Some(self.last)
    }

    /// Adds a key that was not known; its number.
    pub fn add(&mut self, key: K, value: V) -> u32 {
        let number = self.all.len() as u32;
        self.numbers.insert(key, number);
        self.all.push((key, value));
        self.look += 1;
        self.looks.push(self.look);
        number
    }

    /// Adds a key that was not known to a table of `most` entries: its number, which is that of the entry that was not
    /// looked for for longest, but for those that `stays` says of. If all of them stay, there is one more.
    pub fn add_or_replace(&mut self, most: usize, key: K, value: V, stays: impl Fn(&V) -> bool) -> u32 {
        if self.all.len() < most {
            return self.add(key, value);
        }
        // Looked for again and again, the last one was counted once.
        if let Some(last) = self.looks.get_mut(self.last as usize) {
            self.look += 1;
            *last = self.look;
        }
        let may_go = (0..).zip(&self.all).zip(&self.looks).filter(|((_, entry), _)| !stays(&entry.1));
        let Some(((number, (before, _)), _)) = may_go.min_by_key(|(_, look)| **look) else {
            return self.add(key, value);
        };
        self.numbers.remove(before);
        self.numbers.insert(key, number);
        self.look += 1;
        (self.all[number as usize], self.looks[number as usize]) = ((key, value), self.look);
        number
    }

    /// The value of this number.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&V> {
        self.all.get(number as usize).map(|it| &it.1)
    }

    /// The value of this number, to be changed.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut V> {
        self.all.get_mut(number as usize).map(|it| &mut it.1)
    }

    /// All values.
    pub fn iter(&self) -> impl Iterator<Item = &V> {
        self.all.iter().map(|it| &it.1)
    }

    /// All values, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.all.iter_mut().map(|it| &mut it.1)
    }

    /// All values, out of it.
    pub fn into_values(self) -> impl Iterator<Item = V> {
        self.all.into_iter().map(|it| it.1)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_the_number_that_it_got() {
        let mut table: Table<u64, u64> = Table::default();
        for number in 0..1000u32 {
            let key = u64::from(number) * 7;
            assert_eq!(table.find(key), None);
            assert_eq!(table.add(key, key + 1), number);
            let half = u64::from(number / 2) * 7;
            assert_eq!((table.find(half), table.get(number / 2)), (Some(number / 2), Some(&(half + 1))));
        }
        *table.get_mut(3).unwrap() = 0;
        assert_eq!((table.find(21), table.get(3), table.get(1000)), (Some(3), Some(&0), None));
        assert_eq!((table.len(), table.iter().filter(|it| **it == 0).count()), (1000, 1));
    }

    #[test]
    fn a_full_table_forgets_the_entry_that_was_not_looked_for_for_longest() {
        let mut table: Table<u64, bool> = Table::default();
        let add = |table: &mut Table<u64, bool>, key, stays| table.add_or_replace(4, key, stays, |it| *it);
        assert_eq!(
            [(10, true), (11, false), (12, false), (13, false)].map(|it| add(&mut table, it.0, it.1)),
            [0, 1, 2, 3]
        );
        assert_eq!(table.find(11), Some(1));
        assert_eq!((add(&mut table, 14, false), table.find(12), table.find(14)), (2, None, Some(2)));
        assert_eq!((add(&mut table, 15, true), add(&mut table, 16, true), add(&mut table, 17, true)), (3, 1, 2));
        // All of them stay.
        assert_eq!((add(&mut table, 18, false), table.len(), table.find(17)), (4, 5, Some(2)));
        assert_eq!((add(&mut table, 19, false), table.len(), table.find(18), table.find(19)), (4, 5, None, Some(4)));
    }

    #[test]
    fn an_entry_in_use_stays_however_many_others_come() {
        let mut table: Table<u64, bool> = Table::default();
        (0..4).for_each(|key| _ = table.add_or_replace(4, key, false, |it| *it));
        for key in 100..120 {
            assert!(table.find(0).is_some(), "{key}");
            assert_eq!(table.find(key), None);
            table.add_or_replace(4, key, false, |it| *it);
        }
    }
}
