//! By NBD.

use std::fs;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use ucrypt_export::nbd::protocol::{
    self, REQUEST_LEN, SIMPLE_REPLY_MAGIC, command, get_u16, get_u32, get_u64, handshake_flag,
    info, option, option_reply, transmission_flag,
};

use super::{DATA_MAX, Image, Pages, THREADS, put};

/// Longest option, in bytes: a name has 4096 at most.
const OPTION_MAX: usize = 8192;

/// What a client is told if a request fails.
const EIO: u32 = 5;

fn answer_option(mut client: &UnixStream, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let mut said = protocol::OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    for number in [option, kind, data.len() as u32] {
        said.extend(number.to_be_bytes());
    }
    said.extend(data);
    client.write_all(&said)
}

/// Whether the client goes on to requests.
fn negotiate(mut client: &UnixStream, len: u64) -> io::Result<bool> {
    let magic = [protocol::GREETING_MAGIC, protocol::OPTION_MAGIC].map(u64::to_be_bytes).concat();
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    client.write_all(&[&magic[..], &flags.to_be_bytes()].concat())?;
    client.read_exact(&mut [0; 4])?;
    let flags = transmission_flag::HAS_FLAGS | transmission_flag::SEND_FLUSH;
    let export = [&len.to_be_bytes()[..], &flags.to_be_bytes()].concat();
    loop {
        let mut asked = [0; 16];
        client.read_exact(&mut asked)?;
        let number = |at: usize| get_u32(&asked, at).unwrap_or(0);
        let (asked_for, rest) = (number(8), number(12) as usize);
        if asked[..8] != protocol::OPTION_MAGIC.to_be_bytes() || rest > OPTION_MAX {
            return Ok(false);
        }
        client.read_exact(&mut vec![0; rest])?;
        match asked_for {
            option::EXPORT_NAME => {
                client.write_all(&export)?;
                return Ok(true);
            }
            option::GO => {
                let told = [&info::EXPORT.to_be_bytes()[..], &export].concat();
                answer_option(client, asked_for, option_reply::INFO, &told)?;
                answer_option(client, asked_for, option_reply::ACK, &[])?;
                return Ok(true);
            }
            option::ABORT => {
                answer_option(client, asked_for, option_reply::ACK, &[])?;
                return Ok(false);
            }
            _ => answer_option(client, asked_for, option_reply::ERR_UNSUP, &[])?,
        }
    }
}

/// Takes requests of NBD until the client has gone.
fn serve_nbd(client: &UnixStream, turns: &(Mutex<()>, Mutex<()>), image: &Image) -> io::Result<()> {
    let (receiving, sending) = turns;
    let mut data = Pages::new(DATA_MAX);
    loop {
        let mut asked = [0; REQUEST_LEN];
        let mut client = client;
        let turn = receiving.lock().unwrap_or_else(PoisonError::into_inner);
        client.read_exact(&mut asked)?;
        let kind = get_u16(&asked, 6).unwrap_or(command::DISC);
        let offset = get_u64(&asked, 16).unwrap_or(0);
        let len = get_u32(&asked, 24).unwrap_or(0) as usize;
        if kind == command::DISC || len > protocol::PAYLOAD_BYTES_MAX as usize {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let data = data.front(len);
        if kind == command::WRITE {
            client.read_exact(data)?;
        }
        drop(turn);
        let done = match kind {
            command::READ => image.read(data, offset).and_then(|count| {
                if count == len { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
            }),
            command::WRITE => image.write(data, offset),
            command::FLUSH => image.flush(),
            _ => Err(io::ErrorKind::Unsupported.into()),
        };
        let error = if done.is_ok() { 0 } else { EIO };
        let mut say = [0; 16];
        put(&mut say, 0, &SIMPLE_REPLY_MAGIC.to_be_bytes());
        put(&mut say, 4, &error.to_be_bytes());
        put(&mut say, 8, &asked[8..16]);
        let body = if kind == command::READ && done.is_ok() { &*data } else { &[] };
        let _turn = sending.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = client.write_vectored(&[IoSlice::new(&say), IoSlice::new(body)])?;
        client.write_all(body.get(sent.saturating_sub(say.len())..).unwrap_or_default())?;
    }
}

/// Serves a client until it has gone.
fn serve_client(client: &UnixStream, image: &Image) {
    if !negotiate(client, image.len).unwrap_or(false) {
        return;
    }
    let turns = (Mutex::new(()), Mutex::new(()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                if serve_nbd(client, &turns, image).is_err() {
                    // The others notice that it is over.
                    let _ = client.shutdown(Shutdown::Both);
                }
            });
        }
    });
}

/// Serves an image on a Unix socket at `place` until it is killed.
///
/// # Errors
/// If the image cannot be opened, or the socket not be made.
pub fn serve(image: &Path, place: &Path) -> io::Result<()> {
    let image = Image::open(image)?;
    // One that a killed server has left.
    let _ = fs::remove_file(place);
    let listener = UnixListener::bind(place)?;
    std::thread::scope(|scope| {
        for client in listener.incoming() {
            let (client, image) = (client?, &image);
            scope.spawn(move || serve_client(&client, image));
        }
        Ok(())
    })
}
