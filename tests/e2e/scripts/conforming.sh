#!/bin/sh
# A wrapper as clusters have them: neither python's nor gone after an exec.
echo "rank $RANK of $WORLD_SIZE, $1" > "$OUT/seen-$RANK-$TORCHELASTIC_RESTART_COUNT.txt"
