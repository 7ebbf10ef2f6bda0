//! What is said on a connection of ZeroMQ's (RFC 23, ZMTP 3.0), byte by byte, right or wrong.

pub(super) const MORE: u8 = 1;
const LONG: u8 = 2;
pub(super) const COMMAND: u8 = 4;

/// How a greeting of a known version begins.
pub(super) const SIGNATURE: [u8; 10] = [0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f];

/// Version 3.`minor`, a mechanism, and that this end is no server.
pub(super) fn greeting(minor: u8, mechanism: &[u8]) -> Vec<u8> {
    let mut bytes = [&SIGNATURE[..], &[3, minor], mechanism].concat();
    bytes.resize(64, 0);
    bytes
}

/// With its length in one byte, where that holds it.
pub(super) fn frame(flags: u8, bytes: &[u8]) -> Vec<u8> {
    match u8::try_from(bytes.len()) {
        Ok(length) => [&[flags, length], bytes].concat(),
        Err(_) => claim(flags, bytes.len() as u64, bytes),
    }
}

/// A frame that says to be `length` long, whatever it is.
pub(super) fn claim(flags: u8, length: u64, bytes: &[u8]) -> Vec<u8> {
    [&[flags | LONG], &length.to_be_bytes()[..], bytes].concat()
}

pub(super) fn command(name: &[u8], body: &[u8]) -> Vec<u8> {
    frame(COMMAND, &[&short(name), body].concat())
}

/// Up to 255 bytes behind their length.
pub(super) fn short(bytes: &[u8]) -> Vec<u8> {
    [&[bytes.len() as u8], bytes].concat()
}

pub(super) fn property(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&short(name), &(value.len() as u32).to_be_bytes()[..], value].concat()
}

pub(super) fn properties(socket_type: &[u8], routing_id: &[u8]) -> Vec<u8> {
    [property(b"Socket-Type", socket_type), property(b"Identity", routing_id)].concat()
}

/// What follows the first frame; none where there is no whole one.
pub(super) fn behind_frame(bytes: &[u8]) -> Option<&[u8]> {
    let (flags, rest) = bytes.split_first()?;
    let (length, rest) = match flags & LONG {
        0 => rest.split_first().map(|(length, rest)| (u64::from(*length), rest))?,
        _ => rest.split_first_chunk().map(|(length, rest)| (u64::from_be_bytes(*length), rest))?,
    };
    rest.get(length as usize..) // fits: lengths here are small
}
