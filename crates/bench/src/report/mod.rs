//! What was found, for people: text, and one page with plots.

mod text;

pub use text::text;
