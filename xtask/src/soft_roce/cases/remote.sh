# A program on node 0 starts programs on node 1 as ssh would.
expect "$(rsh $peer 'echo "$NODE"')" 1
expect "$(echo '{"a line": 1}' | rsh $peer cat)" '{"a line": 1}'
expect "$(rsh $peer 'echo output; echo error >&2' 2>/dev/null)" output
expect "$(rsh $peer 'echo output; echo error >&2' 2>&1 >/dev/null)" error
status=0
rsh $peer exit 7 || status=$?
expect "$status" 7
# as many bytes come back as went there
expect "$(head -c 3000000 /dev/zero | rsh $peer cat | wc -c)" 3000000
# the input of a command closes when its caller is killed
mkfifo /tmp/open
rsh $peer 'echo here; cat; touch /tmp/closed' <>/tmp/open >/tmp/said &
until grep -q here /tmp/said 2>/dev/null; do sleep 0.1; done
kill -9 $!
for ((i = 0; i < 50; i++)); do ! rsh $peer test -e /tmp/closed || exit 0; sleep 0.1; done
echo "the command's input is still open"
exit 1
