//! The control side of a connection: what the front end asks for, message by message.
//!
//! The `vhost` crate reads the messages and checks their lengths; here is what they mean. A
//! message that asks for what is not there ends the connection: the front end may come again.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ucrypt_engine::VolumeInfo;
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

/// The base of a region in a mapping of ours; only asked for by post-copy migration.
type RegionBase = vhost::VhostUserMemoryRegionBase;

/// The device as one front end has set it up. Dropping it ends its rings.
pub(super) struct Device {
    state: Arc<DeviceState>,
    offered: u64,
    /// What the driver and the front end accepted.
    features: u64,
    map: Arc<GuestMap>,
    rings: Vec<RingSlot>,
    inflight: Option<Inflight>,
}

fn failed(error: io::Error) -> Error {
    Error::ReqHandlerError(error)
}

fn unsupported<T>() -> Result<T> {
    Err(Error::InvalidOperation("not offered"))
}

impl Device {
    pub(super) fn new(state: Arc<DeviceState>) -> io::Result<Self> {
        let map = Arc::new(GuestMap::default());
        let rings = (0..usize::from(QUEUES_MAX)).map(|index| RingSlot::new(index, map.clone()));
        // A front end that does not ask for more gets a write cache, as it is told.
        state.writeback.store(true, Ordering::Relaxed);
        Ok(Self {
            offered: config::features(&state.volume.info()),
            features: 0,
            rings: rings.collect::<io::Result<_>>()?,
            map,
            inflight: None,
            state,
        })
    }

    fn info(&self) -> VolumeInfo {
        self.state.volume.info()
    }

    /// A ring, and what it is to be started with.
    fn ring(&mut self, index: u32) -> Result<(&mut RingSlot, Surroundings<'_>)> {
        let surroundings = Surroundings {
            device: &self.state,
            inflight: self.inflight.as_ref(),
            event_idx: self.features & feature::EVENT_IDX != 0,
        };
        let ring = self.rings.get_mut(index as usize).ok_or(Error::InvalidParam)?;
        Ok((ring, surroundings))
    }

    fn set_map(&mut self, map: GuestMap) {
        self.map = Arc::new(map);
        self.rings.iter().for_each(|ring| ring.set_memory(&self.map));
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // All at once; each is waited for when it is dropped.
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
        // A driver that knows of no cache must not have one.
        let knows = feature::FLUSH | feature::CONFIG_WCE;
        self.state.writeback.store(features & knows != 0, Ordering::Relaxed);
        if features & feature::PROTOCOL_FEATURES == 0 {
            // Nobody will enable them.
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
            map = map.with(region, file).map_err(failed)?;
        }
        self.set_map(map);
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).ok().filter(|&size| size <= RING_SIZE_MAX);
        let size = size.filter(|size| size.is_power_of_two()).ok_or(Error::InvalidParam)?;
        let (ring, surroundings) = self.ring(index)?;
        ring.change(&surroundings, |place| place.size = size).map_err(failed)
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
        ring.change(&surroundings, |place| {
            (place.descriptors, place.available, place.used) = (descriptors, available, used);
        })
        .map_err(failed)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        let (ring, surroundings) = self.ring(index)?;
        ring.change(&surroundings, |place| place.base = base).map_err(failed)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let (ring, _) = self.ring(index)?;
        Ok(VhostUserVringState::new(index, u32::from(ring.stop())))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let (ring, surroundings) = self.ring(u32::from(index))?;
        ring.set_kick(&surroundings, fd).map_err(failed)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.ring(u32::from(index))?.0.set_call(fd).map_err(failed)
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
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
        let writeback = self.state.writeback.load(Ordering::Relaxed);
        Ok(config::read(&config::space(&self.info(), writeback), offset, size))
    }

    fn set_config(
        &mut self,
        offset: u32,
        bytes: &[u8],
        _flags: VhostUserConfigFlags,
    ) -> Result<()> {
        match (offset, bytes) {
            (WRITEBACK_AT, [cache @ 0..=1]) if self.features & feature::CONFIG_WCE != 0 => {
                self.state.writeback.store(*cache == 1, Ordering::Relaxed);
                Ok(())
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
        let area = Inflight::open(file, mmap_offset, mmap_size, num_queues, queue_size);
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
        let map = self.map.with(region, file).map_err(failed)?;
        self.set_map(map);
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let (guest, len, user) = (region.guest_phys_addr, region.memory_size, region.user_addr);
        let map = self.map.without(guest, len, user).ok_or(Error::InvalidParam)?;
        self.set_map(map);
        Ok(())
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
