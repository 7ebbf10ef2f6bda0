//! The call without its codec: a message's few bytes before the content are written by hand, and the
//! content is sent from where it lies; on the other side it goes from HTTP/2's frames to where it belongs.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tower::ServiceExt;

use super::PUSH;
use crate::transport::ContentSink;

/// gRPC's own bytes before a message: compressed or not, and the message's length in 4 bytes.
const PREFIX_BYTES: usize = 5;
/// Most bytes before a content: that prefix, a key, a length.
const OPENING_BYTES_MAX: usize = PREFIX_BYTES + 1 + 10;
/// The field of a message.
const CONTENT: u32 = 1;

/// A body of frames that are all there.
struct Frames(VecDeque<Frame<Bytes>>);

impl HttpBody for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }
}

/// Calls `Push`, and waits for the answer.
pub(super) async fn push(
    channel: Channel,
    metadata: HeaderMap,
    content: Bytes,
) -> Result<(), Status> {
    let Some(opening) = opening(content.len()) else {
        return Err(Status::out_of_range("a message of gRPC has less than 4 GiB"));
    };
    let frames = [opening.into(), content].map(Frame::data);
    let mut request = Request::new(Body::new(Frames(frames.into())));
    (*request.method_mut(), *request.headers_mut()) = (Method::POST, metadata);
    *request.uri_mut() = http::Uri::from_static(PUSH);
    *request.version_mut() = http::Version::HTTP_2;
    request.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
    request.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    let response =
        channel.oneshot(request).await.map_err(|error| Status::from_error(error.into()))?;
    let (parts, mut body) = response.into_parts();
    let mut status = Status::from_header_map(&parts.headers);
    while let Some(frame) = body.frame().await {
        if let Ok(trailers) = frame?.into_trailers() {
            status = status.or_else(|| Status::from_header_map(&trailers));
        }
    }
    match status {
        Some(status) if status.code() == Code::Ok => Ok(()),
        Some(status) => Err(status),
        None => Err(Status::internal("the answer has no status")),
    }
}

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Takes a message with a content of `bytes` bytes as it comes, and answers.
pub(super) async fn take(
    mut body: Body,
    sink: Box<dyn ContentSink>,
    bytes: usize,
) -> Result<Response<Body>, Status> {
    let mut message = Message { opening: Vec::new(), is_open: false, sink, left: bytes };
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            message.take(&data).map_err(Status::invalid_argument)?;
        }
    }
    message.end().map_err(Status::invalid_argument)?;
    // an empty message, and that all is well
    let mut trailers = HeaderMap::new();
    Status::ok("").add_header(&mut trailers)?;
    let done = Frame::data(Bytes::from_static(&[0; PREFIX_BYTES]));
    let frames = Frames([done, Frame::trailers(trailers)].into());
    let mut response = Response::new(Body::new(frames));
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    Ok(response)
}

/// What is before the content; none if a message cannot be so long. A field without a byte is left out.
fn opening(content_bytes: usize) -> Option<Vec<u8>> {
    let mut field = Vec::with_capacity(OPENING_BYTES_MAX);
    if content_bytes > 0 {
        encode_key(CONTENT, WireType::LengthDelimited, &mut field);
        encode_varint(content_bytes as u64, &mut field);
    }
    let bytes = u32::try_from(field.len().checked_add(content_bytes)?).ok()?;
    let mut opening = vec![0];
    opening.extend_from_slice(&bytes.to_be_bytes());
    opening.append(&mut field);
    Some(opening)
}

/// A message that comes in pieces.
struct Message {
    /// What has come of it.
    opening: Vec<u8>,
    /// The opening is whole.
    is_open: bool,
    sink: Box<dyn ContentSink>,
    /// Of the content.
    left: usize,
}

impl Message {
    fn take(&mut self, mut data: &[u8]) -> Result<(), &'static str> {
        if !self.is_open {
            let before = self.opening.len();
            let (more, _) = data.split_at(data.len().min(OPENING_BYTES_MAX - before));
            self.opening.extend_from_slice(more);
            let Some((content_bytes, begin)) = read_opening(&self.opening)? else {
                return match self.opening.len() < OPENING_BYTES_MAX {
                    true => Ok(()),
                    false => Err("its field is no content"),
                };
            };
            if content_bytes != self.left {
                return Err("another content than its head says");
            }
            self.is_open = true;
            data = &data[begin - before..];
        }
        self.left = self.left.checked_sub(data.len()).ok_or("more bytes than it said")?;
        self.sink.write(data);
        Ok(())
    }

    fn end(self) -> Result<(), &'static str> {
        match self.is_open && self.left == 0 {
            true => {
                self.sink.done();
                Ok(())
            }
            false => Err("fewer bytes than it said"),
        }
    }
}

/// The content's length, and where it begins, once all of the opening is there.
fn read_opening(opening: &[u8]) -> Result<Option<(usize, usize)>, &'static str> {
    let Some((prefix, mut field)) = opening.split_at_checked(PREFIX_BYTES) else {
        return Ok(None);
    };
    // fits: usize is 64 bits wide
    let bytes = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    if prefix[0] != 0 {
        return Err("a compressed message");
    }
    if bytes == 0 {
        return Ok(Some((0, PREFIX_BYTES)));
    }
    // what ends early here may be complete in a moment
    let (Ok((number, wire_type)), Ok(length)) = (decode_key(&mut field), decode_varint(&mut field))
    else {
        return Ok(None);
    };
    let begin = opening.len() - field.len();
    let end = usize::try_from(length).ok().and_then(|length| begin.checked_add(length));
    match (number, wire_type, end) {
        (CONTENT, WireType::LengthDelimited, Some(end)) if end == PREFIX_BYTES + bytes => {
            Ok(Some((end - begin, begin)))
        }
        _ => Err("its field is no content"),
    }
}

/// Any bytes as an opening: [`crate::fuzz`].
pub(super) fn fuzz_openings(bytes: &[u8]) {
    if let Ok(Some((content_bytes, begin))) = read_opening(bytes) {
        assert!(begin <= bytes.len());
        let again = opening(content_bytes).unwrap_or_default();
        assert_eq!(read_opening(&again), Ok(Some((content_bytes, again.len()))));
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::Tensor;
    use super::*;
    use prost::Message as _;

    #[test]
    fn an_opening_and_its_content_are_a_message_of_protobuf() {
        for content in [&b""[..], b"content", &[9; 70_000]] {
            let mut bytes = opening(content.len()).unwrap();
            bytes.extend_from_slice(content);
            let length = u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
            assert_eq!(length as usize, bytes.len() - PREFIX_BYTES);
            let tensor = Tensor { content: Bytes::copy_from_slice(content) };
            assert_eq!(tensor.encode_to_vec(), bytes[PREFIX_BYTES..]);
        }
        assert!(opening(u32::MAX as usize).is_none());
    }

    #[test]
    fn an_opening_is_read_as_soon_as_it_is_whole_and_not_before() {
        let whole = opening(1 << 20).unwrap();
        for end in 0..whole.len() {
            assert_eq!(read_opening(&whole[..end]), Ok(None), "{end} bytes");
        }
        assert_eq!(read_opening(&whole), Ok(Some((1 << 20, whole.len()))));
        assert_eq!(read_opening(&[0; 5]), Ok(Some((0, 5))));
    }

    #[test]
    fn what_is_no_message_of_ours_is_refused() {
        assert!(read_opening(&[1, 0, 0, 0, 0]).unwrap_err().contains("compressed"));
        // field 3, and contents that do not reach to the end, or beyond it
        for fields in [&b"\x1a\x01x"[..], b"\x0a\x01xx", b"\x0a\x03xx"] {
            let mut bytes = vec![0, 0, 0, 0, fields.len() as u8];
            bytes.extend_from_slice(fields);
            assert!(read_opening(&bytes).unwrap_err().contains("its field"));
        }
    }
}
