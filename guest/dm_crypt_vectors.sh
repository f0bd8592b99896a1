#!/bin/sh
# In the guest: sends plaintext through every table of /work/tables, onto /dev/disk/vectors, and
# looks whether the same comes back. /work/plaintext/N holds the plaintext of N runs of 8 KiB.
# A table that is refused is tried line by line.
#
# /out/refused: TABLE LINE REASON. /out/unreadable: TABLE LINE of what came back as something else.
touch /out/refused /out/unreadable
dmesg -n 1
dmesg -c > /dev/null

# read_back RUN RUNS: RUNS runs of the device from number RUN on.
read_back() {
    dd if=/dev/mapper/crypt bs=8192 skip="$1" count="$2" 2>/dev/null
}

# through RUNS TABLE LINE: RUNS runs through the device; they are those of TABLE from LINE on.
through() {
    dd if="/work/plaintext/$1" of=/dev/mapper/crypt bs=8192 conv=fsync 2>/dev/null
    # Closing the device has emptied its cache.
    if ! read_back 0 "$1" | cmp -s - "/work/plaintext/$1"; then
        run=0
        while [ "$run" -lt "$1" ]; do
            read_back "$run" 1 | cmp -s - /work/plaintext/1 ||
                echo "$2 $(($3 + run))" >> /out/unreadable
            run=$((run + 1))
        done
    fi
    dmsetup remove crypt
}

for table in /work/tables/*; do
    name=${table##*/}
    case $name in *00) echo "table $name" ;; esac
    if dmsetup create crypt "$table" 2>/dev/null; then
        through "$(wc -l < "$table")" "$name" 0
        continue
    fi
    dmesg -c > /dev/null
    line=0
    while read -r _ rest; do
        if echo "0 $rest" | dmsetup create crypt 2>/dev/null; then
            through 1 "$name" "$line"
        else
            reason=$(dmesg -c | sed -n 's/.*: crypt: //p' | tail -n 1)
            echo "$name $line ${reason:-no reason given}" >> /out/refused
        fi
        line=$((line + 1))
    done < "$table"
done
sync
