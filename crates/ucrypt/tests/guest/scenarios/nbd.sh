# The kernel's NBD client turns ucrypt's NBD export into a disk.
# shellcheck disable=SC2154 # common.sh sets $server
truncate -s 48M image
format image
serve out image --key-file key --nbd unix:socket
nbd-client -unix "$PWD/socket" /dev/nbd0 -block-size 4096
verify /dev/nbd0
nbd-client -d /dev/nbd0
stop "$server"
