//! Values of options as text: what is none is refused by the option's name, which clap leaves out by itself. Touches nothing.

use clap::builder::{OsStringValueParser, TypedValueParser};
use std::error::Error;
use std::ffi::OsString;

/// A value that is UTF-8.
pub(crate) fn text() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().try_map(|value| text_of(value).map_err(Box::<dyn Error + Send + Sync>::from))
}

/// One that `parse` makes something of.
pub(crate) fn text_as<T: Clone + Send + Sync + 'static>(
    parse: impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static,
) -> impl TypedValueParser<Value = T> {
    let parsed =
        move |value| text_of(value).and_then(|text| parse(&text)).map_err(Box::<dyn Error + Send + Sync>::from);
    OsStringValueParser::new().try_map(parsed)
}

fn text_of(value: OsString) -> Result<String, String> {
    value.into_string().map_err(|_| "is no text: not UTF-8".to_owned())
}
