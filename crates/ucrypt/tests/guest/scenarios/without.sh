# Without the driver the command says what is missing, and what works instead.
rmmod ublk_drv
refused 4 "--as loop" ucrypt serve --backend mem:16M --ublk
insmod /modules/ublk_drv.ko
