//! What the tests of whole programs share.
