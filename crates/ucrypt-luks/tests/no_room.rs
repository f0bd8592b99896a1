//! A medium without room. Each step of a rotation asks for all the room that it needs before it writes, so
//! that a step is done as a whole or not begun.

mod common;

use std::cell::{Cell, RefCell};
use std::io;

use common::keys::{NEW, OTHER, images, new_key, opens};
use common::recorder::Recorder;
use common::{PASSPHRASE, apply, with_tools};
use ucrypt_luks::{Error, Header, Medium, ReadAt, Write, rotate};

/// A medium with room for some steps.
struct Full {
    image: Recorder,
    /// The steps that still find room.
    room: Cell<usize>,
    /// What has room and is not written yet.
    reserved: RefCell<Vec<Write>>,
}

impl Full {
    fn new(image: &[u8], room: usize) -> Self {
        Self { image: Recorder::new(image), room: Cell::new(room), reserved: RefCell::default() }
    }
}

impl ReadAt for Full {
    fn len(&self) -> u64 {
        ReadAt::len(&self.image)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.image.read_exact_at(offset, buf)
    }
}

impl Medium for Full {
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut reserved = self.reserved.borrow_mut();
        let write = Write { offset, bytes: bytes.into() };
        let at = reserved.iter().position(|here| *here == write);
        reserved.remove(at.unwrap_or_else(|| panic!("{write:?} was begun without its room")));
        self.image.write_all_at(offset, bytes)
    }

    fn reserve(&self, writes: &[Write]) -> io::Result<()> {
        assert!(self.reserved.borrow().is_empty(), "a step was not ended");
        let room = self.room.get().checked_sub(1);
        self.room.set(room.ok_or(io::ErrorKind::StorageFull)?);
        self.reserved.borrow_mut().extend_from_slice(writes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.image.sync()
    }

    fn forget_cached(&self, offset: u64, length: u64) {
        self.image.forget_cached(offset, length);
    }
}

/// An image on which the key that is rotated opens two keyslots, and somebody else has a key.
fn with_others(image: &[u8]) -> Vec<u8> {
    let mut image = image.to_vec();
    for (number, passphrase) in [(3, OTHER), (6, PASSPHRASE)] {
        let header = Header::read(&image).unwrap().0;
        let volume = header.unlock(&image, PASSPHRASE, None).unwrap();
        let change = with_tools(90 + u64::from(number), |tools| {
            header.add_key(None, &volume, Some(number), &new_key(passphrase), tools).unwrap()
        });
        apply(&mut image, &change.writes);
    }
    image
}

#[test]
fn a_rotation_that_finds_no_room_begins_no_step_and_comes_to_its_end_later() {
    for ((what, image), steps) in images().into_iter().zip([2, 3]) {
        let image = with_others(&image);
        let key = opens(&image, PASSPHRASE).unwrap().volume_key;
        for room in 0..=steps {
            let full = Full::new(&image, room);
            let ended = with_tools(91, |tools| rotate(&full, PASSPHRASE, &new_key(NEW), tools));
            assert_eq!(ended.is_ok(), room == steps, "{what}, {room} steps: {ended:?}");
            if let Err(error) = ended {
                assert!(matches!(error, Error::NoRoom(_)), "{what}, {room} steps: {error}");
            }
            let now = full.image.now.into_inner();
            assert!(room > 0 || now == image, "{what}: something was written");
            let (header, damage) = Header::read(&now).unwrap();
            assert!(damage.is_none(), "{what}, {room} steps: {damage:?}");
            let new_opens = opens(&now, NEW).is_some_and(|opened| opened.volume_key == key);
            assert_eq!(new_opens, room > 0, "{what}, {room} steps");
            let old = [0, 6].map(|number| header.unlock(&now, PASSPHRASE, Some(number)).is_ok());
            assert_eq!(old, [room < steps; 2], "{what}, {room} steps");

            let again = Full::new(&now, usize::MAX);
            with_tools(92, |tools| rotate(&again, PASSPHRASE, &new_key(NEW), tools)).unwrap();
            let end = again.image.now.into_inner();
            assert_eq!(Header::read(&end).unwrap().0.keyslots(), [1, 3], "{what}, {room} steps");
            for (passphrase, opened) in [(NEW, true), (OTHER, true), (PASSPHRASE, false)] {
                assert_eq!(opens(&end, passphrase).is_some(), opened, "{what}, {room} steps");
            }
        }
    }
}
