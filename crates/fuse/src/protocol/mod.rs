//! The FUSE protocol without any I/O: requests from bytes, replies to bytes, the negotiation between them.
//!
//! Knows neither file systems (but for the types it tells the kernel about) nor descriptors. What it parses comes from the
//! kernel, yet is bounds-checked throughout, so that it can be fuzzed and a confused device cannot crash the server.

pub mod constants;
pub mod init;
mod parse;
pub mod reply;
pub mod request;
pub mod wire;

#[cfg(test)]
mod tests;

/// Feeds arbitrary bytes to the parsers as both transports would; for fuzzers. Must never panic, whatever `data` is.
pub fn fuzz_one(data: &[u8]) {
    let _ = request::Request::parse_contiguous(data, data.first().is_some_and(|byte| byte & 1 == 1));
    // The same with a length field that fits, so that the fuzzer gets past the first check.
    let mut fitting = data.to_vec();
    if fitting.len() >= 4 {
        let length_bytes = fitting.len() as u32;
        fitting[..4].copy_from_slice(&length_bytes.to_le_bytes());
        if let Ok(request) = request::Request::parse_contiguous(&fitting, true) {
            exercise(&request);
        }
    }
    if let Ok(header) = request::Header::parse(data) {
        let rest = &data[constants::IN_HEADER_BYTES..];
        let (structure, payload) = rest.split_at(rest.len().min(128));
        if let Ok(request) = request::Request::parse_split(header, structure, payload) {
            exercise(&request);
        }
    }
}

fn exercise(request: &request::Request<'_>) {
    match request.operation {
        Some(request::Operation::Init(offer)) => {
            let wishes = init::Wishes {
                exclusive: true,
                writeback: true,
                locks: true,
                access_lists: true,
                links: true,
                ring: true,
            };
            let _ = init::negotiate(&offer, wishes);
        }
        Some(request::Operation::BatchForget { entries }) => {
            assert!(entries.count() <= request.header.length_bytes.max(1 << 20) as usize);
        }
        _ => {}
    }
}
