# A member on the other machine that is killed ends the job, with its name, in less than 5 s.
TENSORWIRE_LOG=info tensorwire train --hosts $own,$peer --rsh rsh --transport verbs --servers 2 --steps 500 --batch 2 \
  --data synthetic:16 --deadline 60 >/tmp/killed 2>&1 &
for ((i = 0; i < 600; i++)); do
  ! grep -q 'rank 3: 4 queue pairs.*me=2' /tmp/killed || break
  sleep 0.1
done
rsh $peer 'busybox killall -9 tensorwire'
killed=${EPOCHREALTIME/./} status=0
wait $! || status=$?
took=$(((${EPOCHREALTIME/./} - killed) / 1000))
cat /tmp/killed
expect "$status" 1
grep -q "first to fail: .*on $peer.*killed by signal 9" /tmp/killed
echo "known after $took ms"
[[ $took -lt 5000 ]]
