# Key derivations in control groups of version 2, which has no limit of memory and swap together as version 1 does.
groups=/sys/fs/cgroup
mount -t cgroup2 none $groups
echo +memory > $groups/cgroup.subtree_control
chmod 777 .
user="/bin/setpriv --reuid 1000 --regid 1000 --clear-groups"

# limit GROUP FILE=VALUE...: makes a control group, and sets its limits.
limit() {
    group=$groups/$1
    shift
    mkdir "$group"
    for limit in "$@"; do echo "${limit#*=}" > "$group/${limit%%=*}"; done
}

# within GROUP COMMAND...: the command in a control group.
within() {
    group=$groups/$1
    shift
    # The group is entered before the privileges are given up.
    # shellcheck disable=SC2016 # for the shell inside
    sh -ec 'echo $$ > "$0/cgroup.procs"; exec "$@"' "$group" "$@"
}

# opens GROUP [WORD...]: whether the volume opens there, as the user that the words make of root.
opens() {
    group=$1
    shift
    within "$group" "$@" ucrypt open --test-passphrase --key-file key image
}

# Of a small container a new keyslot takes half, and it says so.
limit small memory.max=96M memory.swap.max=0
truncate -s 24M new
within small ucrypt luksFormat -q --pbkdf argon2id --pbkdf-force-iterations 4 --key-file key new 2> said
cat said
grep -q "this container has 96 MiB" said
cryptsetup luksDump new > dump
memory=$(sed -n 's/^\tMemory: *//p' dump)
[ "$memory" -ge 32768 ]
[ "$memory" -le 49152 ]
within small ucrypt open --test-passphrase --key-file key new

truncate -s 24M image
cryptsetup luksFormat -q --type luks2 --pbkdf argon2id --pbkdf-force-iterations 4 --pbkdf-parallel 1 \
    --pbkdf-memory 40960 --key-file key image
chmod 644 image key
limit max memory.max=32M memory.swap.max=0
refused 3 "needs 40 MiB.*memory.max" opens max
# Above this limit nothing is killed, but it would take for ever.
limit high memory.high=32M memory.swap.max=0
refused 3 "needs 40 MiB.*memory.high" opens high
# Of a group that has no limit of its own, the one above it counts.
limit above memory.max=32M memory.swap.max=0
echo +memory > $groups/above/cgroup.subtree_control
limit above/below
refused 3 "needs 40 MiB.*above/memory.max" opens above/below

# Swap counts for whoever cannot lock memory.
limit swap memory.max=32M
refused 3 "needs 40 MiB" opens swap $user
truncate -s 96M file
disk=$(/bin/losetup -f --show file)
mkswap "$disk"
swapon "$disk"
opens swap $user
[ "$(cat $groups/swap/memory.swap.peak)" -gt 0 ]
refused 3 "needs 40 MiB" opens swap
refused 3 "needs 40 MiB" opens max $user
echo 4M > $groups/swap/memory.swap.max
refused 3 "needs 40 MiB" opens swap $user
swapoff "$disk"
/bin/losetup -d "$disk"

# The kernel has killed nobody.
for events in $groups/*/memory.events; do grep -qx "oom_kill 0" "$events"; done

# Other scenarios have no groups.
rmdir $groups/above/below $groups/*/
umount $groups
