//! Reading and writing fields of the protocol's structures in byte slices, with bounds checked.
//!
//! The protocol is in the machine's byte order; only little-endian machines are supported so far, as everywhere else.

/// A request that is shorter than its kind demands, or holds what can never be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// The 32-bit field at `offset_bytes`.
#[inline]
pub fn u32_at(bytes: &[u8], offset_bytes: usize) -> Result<u32, Malformed> {
    match bytes.get(offset_bytes..).and_then(|rest| rest.first_chunk::<4>()) {
        Some(field) => Ok(u32::from_le_bytes(*field)),
        None => Err(Malformed),
    }
}

/// The 16-bit field at `offset_bytes`.
#[inline]
pub fn u16_at(bytes: &[u8], offset_bytes: usize) -> Result<u16, Malformed> {
    match bytes.get(offset_bytes..).and_then(|rest| rest.first_chunk::<2>()) {
        Some(field) => Ok(u16::from_le_bytes(*field)),
        None => Err(Malformed),
    }
}

/// The 64-bit field at `offset_bytes`.
#[inline]
pub fn u64_at(bytes: &[u8], offset_bytes: usize) -> Result<u64, Malformed> {
    match bytes.get(offset_bytes..).and_then(|rest| rest.first_chunk::<8>()) {
        Some(field) => Ok(u64::from_le_bytes(*field)),
        None => Err(Malformed),
    }
}

/// Splits a NUL-terminated string off: (the string without its NUL, what follows).
#[inline]
pub fn split_string(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let end = bytes.iter().position(|&byte| byte == 0).ok_or(Malformed)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

/// A reply of fixed size under construction: at most [`FixedReply::BYTES_MAX`] bytes.
#[derive(Clone, Debug)]
pub struct FixedReply {
    bytes: [u8; Self::BYTES_MAX],
    length_bytes: usize,
}

impl FixedReply {
    /// The longest reply of fixed size is that to STATX, 288 bytes.
    pub const BYTES_MAX: usize = 288;

    /// An empty reply.
    pub const fn new() -> Self {
        Self { bytes: [0; Self::BYTES_MAX], length_bytes: 0 }
    }

    /// What was put so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length_bytes]
    }

    /// Appends bytes. The sizes are the protocol's and constant: more than fit is a bug here, and is cut.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> &mut Self {
        let end = self.length_bytes + bytes.len();
        debug_assert!(end <= Self::BYTES_MAX, "a fixed reply of {end} bytes");
        if let Some(room) = self.bytes.get_mut(self.length_bytes..end) {
            room.copy_from_slice(bytes);
            self.length_bytes = end;
        }
        self
    }

    /// Appends a 16-bit field.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Appends a 32-bit field.
    #[inline]
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Appends a 64-bit field.
    #[inline]
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Appends zeros.
    pub fn zeros(&mut self, count_bytes: usize) -> &mut Self {
        const ZEROS: [u8; FixedReply::BYTES_MAX] = [0; FixedReply::BYTES_MAX];
        self.put(&ZEROS[..count_bytes.min(ZEROS.len())])
    }
}

impl Default for FixedReply {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_outside_the_bytes_are_malformed() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(u32_at(&bytes, 4), Ok(0x0807_0605));
        assert_eq!(u32_at(&bytes, 5), Err(Malformed));
        assert_eq!(u32_at(&bytes, usize::MAX), Err(Malformed));
        assert_eq!(u64_at(&bytes, 0), Ok(0x0807_0605_0403_0201));
        assert_eq!(u64_at(&bytes, 1), Err(Malformed));
        assert_eq!(u16_at(&bytes, 6), Ok(0x0807));
        assert_eq!(u16_at(&bytes, 7), Err(Malformed));
    }

    #[test]
    fn strings_end_at_their_nul() {
        assert_eq!(split_string(b"ab\0cd\0"), Ok((&b"ab"[..], &b"cd\0"[..])));
        assert_eq!(split_string(b"\0"), Ok((&b""[..], &b""[..])));
        assert_eq!(split_string(b"ab"), Err(Malformed));
    }

    #[test]
    fn a_fixed_reply_grows_in_order() {
        let mut reply = FixedReply::new();
        reply.u16(1).u32(2).u64(3).zeros(2);
        assert_eq!(reply.bytes(), [1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
