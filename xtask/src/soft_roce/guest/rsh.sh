#!/bin/bash
# rsh HOST COMMAND...: runs a command on the other machine as ssh would.
exec /run/soft-roce/bin/xtask soft-roce rsh "$@"
