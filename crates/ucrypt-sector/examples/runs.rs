//! Encrypts or decrypts the same sectors again and again, for counting instructions:
//! `runs SPEC KERNEL SECTOR_SIZE SECTORS encrypt|decrypt TIMES`.

use std::{env, error::Error, hint::black_box};

use ucrypt_sector::{CipherSpec, Kernel, SectorCipher, SectorOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [spec, kernel, sector_size, sectors, direction, times] = &arguments[..] else {
        return Err("runs SPEC KERNEL SECTOR_SIZE SECTORS encrypt|decrypt TIMES".into());
    };
    let spec: CipherSpec = spec.parse()?;
    let kernel = Kernel::ALL.iter().find(|known| known.name() == kernel).ok_or("no such kernel")?;
    let options = SectorOptions { sector_size: sector_size.parse()?, ..SectorOptions::default() };
    let key: Vec<u8> = (0..spec.key_sizes().iter().next_back().unwrap_or(0) as u8).collect();
    let cipher = SectorCipher::with_kernel(&spec, &key, options, *kernel)?;
    let len = options.sector_size as usize * sectors.parse::<usize>()?;
    let (src, mut dst) = (vec![1; len], vec![0; len]);
    for _ in 0..times.parse::<usize>()? {
        match direction.as_str() {
            "encrypt" => cipher.encrypt(0, black_box(&src), &mut dst)?,
            _ => cipher.decrypt(0, black_box(&src), &mut dst)?,
        }
        black_box(&mut dst);
    }
    Ok(())
}
