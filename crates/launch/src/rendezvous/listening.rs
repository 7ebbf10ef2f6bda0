//! At which addresses the launcher listens for the processes that somebody else started.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::RendezvousError;
use super::detect::Rendezvous;

/// Calls that wait until they are taken.
const WAITING_MAX: i32 = 128;

/// Listens at the first of the ports that is free, where the others can reach it.
pub(super) fn bind(
    rendezvous: &Rendezvous,
    listen: Option<SocketAddr>,
) -> Result<TcpListener, RendezvousError> {
    if let Some(at) = listen {
        let failed = |source| RendezvousError::Listen { at: at.to_string(), source };
        return TcpListener::bind(at).map_err(failed);
    }
    let mut last = None;
    for port in &rendezvous.ports {
        for address in addresses(rendezvous.host.as_deref()) {
            match listening(SocketAddr::new(address, *port)) {
                Ok(listener) => return Ok(listener),
                Err(error) if error.kind() == ErrorKind::AddrInUse => last = Some(error),
                // the name is that of another interface, or of the network outside of this container
                Err(error) => last = last.or(Some(error)),
            }
        }
    }
    let source = last.unwrap_or_else(|| ErrorKind::AddrNotAvailable.into());
    Err(RendezvousError::Listen { at: rendezvous.to_string(), source })
}

/// Listens at an address; at every one of both kinds at `::`, whatever the system takes it for (`net.ipv6.bindv6only`).
fn listening(at: SocketAddr) -> std::io::Result<TcpListener> {
    if at.ip() != IpAddr::from(Ipv6Addr::UNSPECIFIED) {
        return TcpListener::bind(at);
    }
    let (stream, cloexec) = (SocketType::STREAM, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(AddressFamily::INET6, stream, cloexec, None)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &at)?;
    rustix::net::listen(&socket, WAITING_MAX)?;
    Ok(socket.into())
}

/// Where to listen for those who call `host`: at its address, or, where that is not this host's own or
/// loopback for this host alone, at every one: of both kinds, or where there is no IPv6 of the other.
fn addresses(host: Option<&str>) -> Vec<IpAddr> {
    let Some(host) = host else {
        return vec![Ipv4Addr::LOCALHOST.into()];
    };
    let resolved = (host, 0).to_socket_addrs().into_iter().flatten().map(|at| at.ip()).next();
    let everywhere: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    match resolved {
        // "localhost" means it; a name that this host has for itself (127.0.1.1) means more to others
        Some(own)
            if own.is_loopback() && host != "localhost" && host.parse::<IpAddr>().is_err() =>
        {
            everywhere.to_vec()
        }
        own => own.into_iter().chain(everywhere).collect(),
    }
}
