//! Finds out which user a client on loopback TCP belongs to.
//!
//! TCP knows no users: everybody on this machine may connect. The kernel's `/proc/net/tcp` tells the
//! owner of every socket; the socket of a client on loopback is there too, with its two addresses
//! swapped.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;

/// The state of a connection with both ends open, as the kernel writes it. In any other state, the
/// kernel may show a socket that belongs to nobody any more as root's.
const ESTABLISHED: &str = "01";

/// How often to read the table: a single pass may miss a line if others come and go meanwhile.
const ATTEMPTS: u32 = 3;

/// The user whose socket is at the other end; `None` if that socket is gone or on another machine.
pub(super) fn user(socket: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let socket = TcpStream::from(socket.try_clone_to_owned()?);
    let (theirs, ours) = (socket.peer_addr()?, socket.local_addr()?);
    for _ in 0..ATTEMPTS {
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let opened = match File::open(table) {
                // A kernel without IPv6.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            if let Some(user) = find(BufReader::new(opened), theirs, ours)? {
                return Ok(Some(user));
            }
        }
    }
    Ok(None)
}

/// Finds the user of the client's socket, which is connected from `theirs` to `ours`.
fn find(table: impl BufRead, theirs: SocketAddr, ours: SocketAddr) -> io::Result<Option<u32>> {
    let forms = [(plain(theirs), plain(ours)), (mapped(theirs), mapped(ours))];
    for line in table.lines() {
        let line = line?;
        // sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid …
        let mut words = line.split_ascii_whitespace().skip(1);
        let (Some(local), Some(remote), Some(state)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        if state == ESTABLISHED && forms.iter().any(|form| form.0 == local && form.1 == remote) {
            return Ok(words.nth(3).and_then(|user| user.parse().ok()));
        }
    }
    Ok(None)
}

/// An address as the kernel writes it: 32-bit words in the machine's byte order, and the port.
fn plain(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => written(&address.ip().octets(), address.port()),
        SocketAddr::V6(address) => match address.ip().to_ipv4_mapped() {
            Some(ip) => written(&ip.octets(), address.port()),
            None => written(&address.ip().octets(), address.port()),
        },
    }
}

/// As [`plain`], but of an IPv6 socket that is used for IPv4.
fn mapped(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => written(&address.ip().to_ipv6_mapped().octets(), address.port()),
        SocketAddr::V6(address) => written(&address.ip().octets(), address.port()),
    }
}

fn written(octets: &[u8], port: u16) -> String {
    let words = octets.chunks_exact(4).filter_map(|word| word.try_into().ok());
    let words: Vec<_> = words.map(|word| format!("{:08X}", u32::from_ne_bytes(word))).collect();
    format!("{}:{port:04X}", words.concat())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_client_of_a_connection_is_this_user_over_ipv4_and_ipv6() {
        let own = rustix::process::geteuid().as_raw();
        for (listen, connect) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "[::1]")] {
            // A machine may have no IPv6; it has IPv4.
            let Ok(listener) = TcpListener::bind(listen) else {
                assert_eq!(listen, "[::1]:0");
                continue;
            };
            let port = listener.local_addr().expect("an address").port();
            let client = TcpStream::connect(format!("{connect}:{port}")).expect("connected");
            let (accepted, _) = listener.accept().expect("accepted");
            assert_eq!(user(accepted.as_fd()).expect("read"), Some(own), "{listen}");
            drop(client);
            assert_eq!(user(accepted.as_fd()).expect("read"), None, "nobody is there any more");
        }
    }

    #[test]
    fn only_a_connection_that_is_open_at_both_ends_tells_its_user() {
        let (theirs, ours) = (
            "127.0.0.1:40000".parse().expect("an address"),
            "127.0.0.1:10809".parse().expect("an address"),
        );
        let (from, to) = (plain(theirs), plain(ours));
        let line = |local: &str, remote: &str, state: &str, user: u32| {
            format!(
                "   7: {local} {remote} {state} 00000000:00000000 00:00000000 00000000  {user}        0 4711 1\n"
            )
        };
        let found = |text: String| find(text.as_bytes(), theirs, ours).expect("read");
        assert_eq!(found(line(&from, &to, "01", 65534)), Some(65534));
        assert_eq!(found(line(&mapped(theirs), &mapped(ours), "01", 7)), Some(7));
        assert_eq!(found(line(&from, &to, "06", 0)), None, "nobody's");
        assert_eq!(found(line(&to, &from, "01", 0)), None, "our own end");
        assert_eq!(found("  sl  local_address\n\n".into()), None);
    }
}
