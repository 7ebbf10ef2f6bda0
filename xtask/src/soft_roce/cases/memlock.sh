# A limit on locked memory is named, with the line that raises it.
status=0
fault memlock 65536 -- tensorwire train --transport verbs --workers 1 --servers 1 --steps 1 --batch 2 \
  --data synthetic:16 2>&1 | tee /tmp/train || status=$?
[[ $status != 0 && $status != 99 ]] || { echo "status $status"; exit 1; }
grep -q 'ulimit -l unlimited' /tmp/train
