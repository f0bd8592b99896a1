//! The control side of a connection: handles the front end's messages.
//!
//! The `vhost` crate reads the messages and checks their lengths; this module carries them out. A
//! message that asks for something that is not there ends the connection; the front end may connect
//! again.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::{FdFlags, fcntl_setfd};
use ucrypt_engine::{Io, QueueConfig, Volume, VolumeInfo};
use vhost::vhost_user::GpuBackend;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, Result, VhostUserBackendReqHandlerMut};

use super::config::{self, QUEUES_MAX, RING_SIZE_MAX, WRITEBACK_AT, feature};
use super::inflight::Inflight;
use super::memory::{GuestMap, REGIONS_MAX, Region};
use super::ring::DeviceState;
use super::rings::{RingSlot, Surroundings};

/// The base of a region in our mapping; only post-copy migration asks for it.
type RegionBase = vhost::VhostUserMemoryRegionBase;

/// The device as one front end has set it up. Dropping it ends its rings.
pub(super) struct Device {
    state: Arc<DeviceState>,
    offered: u64,
    /// The features that the driver and the front end have accepted.
    features: u64,
    /// The write cache field of the configuration space; `None` until this front end has read or
    /// written it. A front end that reconnects does neither, and its guest may have switched the
    /// cache off long ago.
    cache: Option<bool>,
    /// What was written before the guest wrote through is durable. Not known of what an earlier front
    /// end has written, or an earlier server: its guest may be the one that goes on here.
    is_flushed: bool,
    map: Arc<GuestMap>,
    rings: Vec<RingSlot>,
    inflight: Option<Inflight>,
}

fn failed(error: io::Error) -> Error {
    Error::ReqHandlerError(error)
}

/// A file that came with a message. The crate receives files so that programs which this process starts
/// inherit them, and guests' memory with them.
fn ours(file: File) -> Result<File> {
    fcntl_setfd(&file, FdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
    Ok(file)
}

fn unsupported<T>() -> Result<T> {
    Err(Error::InvalidOperation("not offered"))
}

impl Device {
    pub(super) fn new(state: Arc<DeviceState>) -> io::Result<Self> {
        let rings = (0..usize::from(QUEUES_MAX)).map(|index| RingSlot::new(index, state.clone()));
        // Writes are durable until it is known that the guest flushes.
        state.writeback.store(false, Ordering::Relaxed);
        Ok(Self {
            offered: config::features(&state.volume.info()),
            features: 0,
            cache: None,
            is_flushed: false,
            rings: rings.collect::<io::Result<_>>()?,
            map: Arc::default(),
            inflight: None,
            state,
        })
    }

    fn info(&self) -> VolumeInfo {
        self.state.volume.info()
    }

    /// A ring, and what to start it with.
    fn ring(&mut self, index: u32) -> Result<(&mut RingSlot, Surroundings<'_>)> {
        let surroundings = surroundings(&self.map, self.inflight.as_ref(), self.features);
        let ring = self.rings.get_mut(index as usize).ok_or(Error::InvalidParam)?;
        Ok((ring, surroundings))
    }

    /// Calls `act` while no ring runs.
    fn between<T>(&mut self, act: impl FnOnce(&mut Self) -> io::Result<T>) -> io::Result<T> {
        self.rings.iter().for_each(RingSlot::ask_to_stop);
        self.rings.iter_mut().try_for_each(RingSlot::pause)?;
        let done = act(self)?;
        let surroundings = surroundings(&self.map, self.inflight.as_ref(), self.features);
        self.rings.iter_mut().try_for_each(|ring| ring.go_on(&surroundings))?;
        Ok(done)
    }

    fn set_map(&mut self, map: GuestMap) -> Result<()> {
        let change = |device: &mut Self| {
            device.map = Arc::new(map);
            Ok(())
        };
        self.between(change).map_err(failed)
    }

    /// The write cache as the configuration space shows it. There is one unless the guest has switched
    /// it off, or switches caches and does not flush them (virtio 1.2, 5.2.5.2).
    fn shows_cache(&self) -> bool {
        let switches_only =
            self.features & (feature::CONFIG_WCE | feature::FLUSH) == feature::CONFIG_WCE;
        self.cache.unwrap_or(true) && !switches_only
    }

    /// Switches writeback by what the guest knows of a write cache. A guest that knows of none sends
    /// no flush.
    fn update_cache(&mut self) -> Result<()> {
        let knows_setting = self.features & feature::CONFIG_WCE == 0 || self.cache == Some(true);
        if self.features & feature::FLUSH != 0 && knows_setting {
            self.is_flushed = false;
            self.state.writeback.store(true, Ordering::Relaxed);
            return Ok(());
        }
        // The guest will no longer flush what it wrote while there was a cache, over whichever
        // connection.
        let is_switched_off = self.cache == Some(false) && !self.is_flushed;
        if is_switched_off || self.state.writeback.load(Ordering::Relaxed) {
            let switch_off = |device: &mut Self| {
                device.state.writeback.store(false, Ordering::Relaxed);
                flush(&device.state.volume)
            };
            self.between(switch_off).map_err(failed)?;
            self.is_flushed = true;
        }
        Ok(())
    }
}

/// What to start a device's rings with.
fn surroundings<'a>(
    map: &'a Arc<GuestMap>,
    inflight: Option<&'a Inflight>,
    features: u64,
) -> Surroundings<'a> {
    Surroundings { map, inflight, event_idx: features & feature::EVENT_IDX != 0 }
}

/// Makes every answered write durable.
fn flush(volume: &Arc<Volume>) -> io::Result<()> {
    let mut queue = volume.queue(QueueConfig::new(4096, 1))?;
    let refused = || io::Error::other("the volume takes no flush");
    queue.submit(0, Io::Flush).map_err(|_| refused())?;
    queue.wait()?;
    Ok(queue.next_done().ok_or_else(refused)?.result?)
}

impl Drop for Device {
    fn drop(&mut self) {
        // Ask all at once; dropping each ring waits for it.
        self.rings.iter().for_each(RingSlot::ask_to_stop);
    }
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        unsupported()
    }

    fn reset_device(&mut self) -> Result<()> {
        unsupported()
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.offered != 0 {
            return Err(Error::InvalidParam);
        }
        self.features = features;
        self.update_cache()?;
        if features & feature::PROTOCOL_FEATURES == 0 {
            // Without protocol features nobody enables the rings.
            for index in 0..u32::from(QUEUES_MAX) {
                let (ring, surroundings) = self.ring(index)?;
                ring.enable(&surroundings, true).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        table: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<RegionBase>>> {
        let mut map = GuestMap::default();
        for (region, file) in table.iter().zip(files) {
            let region = Region {
                guest: region.guest_phys_addr,
                len: region.memory_size,
                user: region.user_addr,
                file_offset: region.mmap_offset,
            };
            map = map.with(region, ours(file)?).map_err(failed)?;
        }
        self.set_map(map)?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).ok().filter(|&size| size <= RING_SIZE_MAX);
        let size = size.filter(|size| size.is_power_of_two()).ok_or(Error::InvalidParam)?;
        let (ring, surroundings) = self.ring(index)?;
        ring.change(&surroundings, |layout| layout.size = size).map_err(failed)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let (ring, surroundings) = self.ring(index)?;
        ring.change(&surroundings, |layout| {
            (layout.descriptors, layout.available, layout.used) = (descriptors, available, used);
        })
        .map_err(failed)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        let (ring, surroundings) = self.ring(index)?;
        ring.change(&surroundings, |layout| layout.base = base).map_err(failed)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let (ring, _) = self.ring(index)?;
        let base = ring.stop().map_err(failed)?;
        Ok(VhostUserVringState::new(index, u32::from(base)))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let (ring, surroundings) = self.ring(u32::from(index))?;
        ring.set_kick(&surroundings, fd.map(ours).transpose()?).map_err(failed)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let fd = fd.map(ours).transpose()?;
        self.ring(u32::from(index))?.0.set_call(fd).map_err(failed)
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let fd = fd.map(ours).transpose()?;
        self.ring(u32::from(index))?.0.set_error(fd).map_err(failed)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let offered = self.get_protocol_features()?.bits();
        if features & !offered == 0 { Ok(()) } else { Err(Error::InvalidParam) }
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(u64::from(QUEUES_MAX))
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let (ring, surroundings) = self.ring(index)?;
        ring.enable(&surroundings, enable).map_err(failed)
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        let asks_for_cache = (offset..offset.saturating_add(size)).contains(&WRITEBACK_AT);
        // From now on the guest knows.
        if asks_for_cache && self.cache.is_none() {
            self.cache = Some(true);
            self.update_cache()?;
        }
        Ok(config::read(&config::space(&self.info(), self.shows_cache()), offset, size))
    }

    fn set_config(
        &mut self,
        offset: u32,
        bytes: &[u8],
        _flags: VhostUserConfigFlags,
    ) -> Result<()> {
        match (offset, bytes) {
            // Even before features are accepted: a driver may switch the cache while it starts.
            (WRITEBACK_AT, [cache @ 0..=1]) if self.offered & feature::CONFIG_WCE != 0 => {
                self.cache = Some(*cache == 1);
                self.update_cache()
            }
            _ => Err(Error::InvalidParam),
        }
    }

    fn get_inflight_fd(
        &mut self,
        inflight: &VhostUserInflight,
    ) -> Result<(VhostUserInflight, File)> {
        let (queues, ring_size) = (inflight.num_queues, inflight.queue_size);
        let (area, file) = Inflight::create(queues, ring_size).map_err(failed)?;
        let reply = VhostUserInflight::new(area.len(), 0, queues, ring_size);
        Ok((reply, file))
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let VhostUserInflight { mmap_size, mmap_offset, num_queues, queue_size } = *inflight;
        let area = Inflight::open(ours(file)?, mmap_offset, mmap_size, num_queues, queue_size);
        self.inflight = Some(area.map_err(failed)?);
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<RegionBase>> {
        let region = Region {
            guest: region.guest_phys_addr,
            len: region.memory_size,
            user: region.user_addr,
            file_offset: region.mmap_offset,
        };
        let map = self.map.with(region, ours(file)?).map_err(failed)?;
        self.set_map(map)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let (guest, len, user) = (region.guest_phys_addr, region.memory_size, region.user_addr);
        let map = self.map.without(guest, len, user).ok_or(Error::InvalidParam)?;
        self.set_map(map)
    }

    fn set_gpu_socket(&mut self, _gpu: GpuBackend) -> Result<()> {
        unsupported()
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        unsupported()
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        unsupported()
    }

    fn check_device_state(&mut self) -> Result<()> {
        unsupported()
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        unsupported()
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        unsupported()
    }
}
