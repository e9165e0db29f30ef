//! What is looked up by the cookie of a socket.

use crate::guest::memory::Reserved;

/// Numbers, by cookie.
pub struct ByCookie(Reserved<(u64, u32)>);

impl ByCookie {
    /// A table of at most so many numbers; `None` without address space.
    pub fn of(most: usize, all: impl Iterator<Item = (u64, u32)>) -> Option<ByCookie> {
        let mut list = Reserved::even_confined(most)?;
        all.filter(|it| it.0 != 0).for_each(|it| {
            list.push(it);
        });
        list.items_mut().sort_unstable();
        Some(ByCookie(list))
    }

    /// The number with this cookie, the lowest if there are several.
    pub fn find(&self, cookie: u64) -> Option<u32> {
        let list = self.0.items();
        let at = list.partition_point(|it| it.0 < cookie);
        list.get(at).filter(|it| it.0 == cookie).map(|it| it.1)
    }
}
