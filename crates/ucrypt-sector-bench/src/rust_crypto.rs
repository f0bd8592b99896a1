//! The RustCrypto crates, in the simplest XTS that passes them all blocks of a sector at once.

use cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit, consts::U16};

use crate::{Direction, Row, Work};

/// A keyed XTS.
struct Xts<C> {
    data: C,
    tweak: C,
}

impl<C> Xts<C>
where
    C: KeyInit + BlockCipherEncrypt<BlockSize = U16> + BlockCipherDecrypt,
{
    fn new() -> Self {
        let key = Work::key(64);
        let half = |key| C::new_from_slice(key).expect("a key of 256 bits");
        Self { data: half(&key[..32]), tweak: half(&key[32..]) }
    }

    fn crypt(&self, direction: Direction, number: u64, src: &[u8], dst: &mut [u8]) {
        let mut tweak = Array(u128::from(number).to_le_bytes());
        self.tweak.encrypt_block(&mut tweak);
        let tweak = u128::from_le_bytes(tweak.0);
        dst.copy_from_slice(src);
        let (blocks, _) = Array::slice_as_chunks_mut(dst);
        whiten(tweak, blocks);
        match direction {
            Direction::Encrypt => self.data.encrypt_blocks(blocks),
            Direction::Decrypt => self.data.decrypt_blocks(blocks),
        }
        whiten(tweak, blocks);
    }
}

/// XORs each block with its tweak.
fn whiten(mut tweak: u128, blocks: &mut [Array<u8, U16>]) {
    for block in blocks {
        block.0 = (u128::from_le_bytes(block.0) ^ tweak).to_le_bytes();
        tweak = (tweak << 1) ^ ((tweak >> 127) * 0x87);
    }
}

fn xts<C>(name: &str, work: Work) -> Row
where
    C: KeyInit + BlockCipherEncrypt<BlockSize = U16> + BlockCipherDecrypt + 'static,
{
    let xts = Xts::<C>::new();
    Row::by_sector(name, work, move |number, src, dst| {
        xts.crypt(work.direction, number, src, dst);
    })
}

/// `None` if no crate is compared for this specification.
pub(crate) fn row(work: Work) -> Option<Row> {
    Some(match work.spec {
        "aes-xts-plain64" => xts::<aes::Aes256>("crate aes", work),
        "serpent-xts-plain64" => xts::<serpent::Serpent>("crate serpent", work),
        "twofish-xts-plain64" => xts::<twofish::Twofish>("crate twofish", work),
        "camellia-xts-plain64" => xts::<camellia::Camellia256>("crate camellia", work),
        _ => return None,
    })
}
