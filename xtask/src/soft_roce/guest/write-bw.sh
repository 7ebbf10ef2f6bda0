#!/bin/bash
# write-bw HOST [OPTION...]: ib_write_bw from here to HOST, which may be this machine. Starts the other
# end as well; prints what this end prints.
host=$1
shift
there=(rsh "$host")
[[ $host != "10.9.0.$((NODE + 1))" ]] || there=()
options=(--ib-dev=rxe0 --gid-index=1 --CPU-freq "$@")
"${there[@]}" ib_write_bw "${options[@]}" </dev/null >/tmp/write-bw.server 2>&1 &
for ((i = 0; i < 100; i++)); do
  [[ -z $("${there[@]}" ss --listening --tcp --numeric --no-header 'sport = :18515') ]] || break
  sleep 0.1
done
# line by line, also into a pipe: somebody may wait for a line
stdbuf -oL ib_write_bw "${options[@]}" "$host" </dev/null
status=$?
if [[ $status != 0 ]]; then
  echo "write-bw: the other end said:" && cat /tmp/write-bw.server
  "${there[@]}" busybox killall -9 ib_write_bw
fi
wait
exit "$status"
