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
use crate::transport::{ContentSink, HEAD_BYTES_MAX};

/// gRPC's own bytes before a message: compressed or not, and the message's length in 4 bytes.
const PREFIX_BYTES: usize = 5;
/// Most bytes before a content: that prefix, two keys, two lengths, a head.
const OPENING_BYTES_MAX: usize = PREFIX_BYTES + 2 + 2 * 10 + HEAD_BYTES_MAX;
/// The fields of a message.
const CONTENT: u32 = 1;
const HEAD: u32 = 2;

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
    head: &[u8],
    content: Bytes,
) -> Result<(), Status> {
    let Some(opening) = opening(head, content.len()) else {
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

/// Takes a message as it comes, to where `open` wants a content of this head and length, and answers.
pub(super) async fn take(
    mut body: Body,
    open: impl Fn(&[u8], usize) -> Result<Box<dyn ContentSink>, String>,
) -> Result<Response<Body>, Status> {
    let mut message = Message::default();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            message.take(&data, &open).map_err(Status::invalid_argument)?;
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

/// What is before the content; none if a message cannot be so long.
fn opening(head: &[u8], content_bytes: usize) -> Option<Vec<u8>> {
    let mut fields = Vec::with_capacity(OPENING_BYTES_MAX);
    encode_key(HEAD, WireType::LengthDelimited, &mut fields);
    encode_varint(head.len() as u64, &mut fields);
    fields.extend_from_slice(head);
    encode_key(CONTENT, WireType::LengthDelimited, &mut fields);
    encode_varint(content_bytes as u64, &mut fields);
    let bytes = u32::try_from(fields.len().checked_add(content_bytes)?).ok()?;
    let mut opening = vec![0];
    opening.extend_from_slice(&bytes.to_be_bytes());
    opening.append(&mut fields);
    Some(opening)
}

/// A message that comes in pieces.
#[derive(Default)]
struct Message {
    /// What has come of the opening.
    opening: Vec<u8>,
    content: Option<(Box<dyn ContentSink>, usize)>,
}

impl Message {
    fn take(
        &mut self,
        mut data: &[u8],
        open: &impl Fn(&[u8], usize) -> Result<Box<dyn ContentSink>, String>,
    ) -> Result<(), String> {
        if self.content.is_none() {
            let before = self.opening.len();
            let (more, _) = data.split_at(data.len().min(OPENING_BYTES_MAX - before));
            self.opening.extend_from_slice(more);
            let Some((head, content_bytes, begin)) = read_opening(&self.opening)? else {
                return match self.opening.len() < OPENING_BYTES_MAX {
                    true => Ok(()),
                    false => Err("a head that is too long".to_string()),
                };
            };
            self.content = Some((open(&head, content_bytes)?, content_bytes));
            data = &data[begin - before..];
        }
        let Some((sink, left)) = &mut self.content else { return Ok(()) };
        *left = left.checked_sub(data.len()).ok_or("more bytes than it said")?;
        sink.write(data);
        Ok(())
    }

    fn end(self) -> Result<(), String> {
        match self.content {
            Some((sink, 0)) => {
                sink.done();
                Ok(())
            }
            _ => Err("fewer bytes than it said".to_string()),
        }
    }
}

/// The head, the content's length, and where the content begins, once all of the opening is there.
fn read_opening(opening: &[u8]) -> Result<Option<(Vec<u8>, usize, usize)>, String> {
    let Some((prefix, mut fields)) = opening.split_at_checked(PREFIX_BYTES) else {
        return Ok(None);
    };
    let bytes = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
    if prefix[0] != 0 {
        return Err("a compressed message".to_string());
    }
    let mut head = Vec::new();
    // fits: usize is 64 bits wide
    let end = PREFIX_BYTES + bytes as usize;
    // what ends early here may be complete in a moment
    while let (Ok((field, WireType::LengthDelimited)), Ok(length)) =
        (decode_key(&mut fields), decode_varint(&mut fields))
    {
        let begin = opening.len() - fields.len();
        let length = usize::try_from(length).map_err(|_| "a field of too many bytes")?;
        match field {
            CONTENT if begin.checked_add(length) == Some(end) => {
                return Ok(Some((head, length, begin)));
            }
            HEAD if length > HEAD_BYTES_MAX => return Err("a head that is too long".to_string()),
            HEAD => match fields.split_at_checked(length) {
                Some((this, rest)) => (head, fields) = (this.to_vec(), rest),
                None => return Ok(None),
            },
            _ => return Err("its fields are not a head and, last, a content".to_string()),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::super::message::Tensor;
    use super::*;
    use prost::Message as _;

    #[test]
    fn an_opening_and_its_content_are_a_message_of_protobuf() {
        for (head, content) in
            [(&b""[..], &b""[..]), (b"head", b"content"), (&[7; 300], &[9; 70_000])]
        {
            let mut bytes = opening(head, content.len()).unwrap();
            bytes.extend_from_slice(content);
            let length = u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
            assert_eq!(length as usize, bytes.len() - PREFIX_BYTES);
            let tensor = Tensor::decode(&bytes[PREFIX_BYTES..]).unwrap();
            assert_eq!((&tensor.head[..], &tensor.content[..]), (head, content));
        }
        assert!(opening(b"head", u32::MAX as usize).is_none());
    }

    #[test]
    fn an_opening_is_read_as_soon_as_it_is_whole_and_not_before() {
        let whole = opening(&[5; 200], 1 << 20).unwrap();
        for end in 0..whole.len() {
            assert_eq!(read_opening(&whole[..end]), Ok(None), "{end} bytes");
        }
        assert_eq!(read_opening(&whole), Ok(Some((vec![5; 200], 1 << 20, whole.len()))));
    }

    #[test]
    fn what_is_no_message_of_ours_is_refused() {
        assert!(read_opening(&[1, 0, 0, 0, 0]).unwrap_err().contains("compressed"));
        // field 3, and a content that does not reach to the end
        for fields in [&b"\x1a\x01x"[..], b"\x0a\x01xx"] {
            let mut bytes = vec![0, 0, 0, 0, fields.len() as u8];
            bytes.extend_from_slice(fields);
            assert!(read_opening(&bytes).unwrap_err().contains("its fields"));
        }
        assert!(read_opening(b"\0\0\0\xff\xff\x12\xff\xff\x01").unwrap_err().contains("too long"));
    }
}
