# Says where the time of a run of tests went: reads what `cargo test` and `cargo xtask soft-roce test` print,
# each line behind the second at which it came, and prints a line for each program and each test: its kind,
# its seconds, its name. -v threads: how many tests a program runs at once.
#
# libtest says when a test ends and not when it started; but it starts tests by the order of their names, the
# first `threads` at once and one more whenever one ends, so the start of each is known.

function say(kind, seconds, name) {
  printf "%s\t%.1f\t%s\n", kind, seconds, name
}

# Sorts the names by their bytes and finds each test's start.
function end_of_program(    i, j, name, at, width) {
  for (i = 1; i <= tests; i++) {
    name = ended[i]
    for (j = i - 1; j >= 1 && sorted[j] > name; j--) sorted[j + 1] = sorted[j]
    sorted[j + 1] = name
  }
  for (i = 1; i <= tests; i++) {
    at = i > threads ? end[ended[i - threads]] : begin
    say("test", end[sorted[i]] - at, program "  " sorted[i])
  }
  tests = 0
}

{
  now = $1
  line = substr($0, length($1) + 2)
}

line ~ /^ +Running .*\(.*\)$/ {
  program = line
  sub(/^.*\//, "", program)
  sub(/-[0-9a-f]+\)$/, "", program)
  if (line ~ /Running unittests/) program = program " (unit tests)"
  started = now
}

line ~ /^ +Doc-tests / {
  program = $3 " (doc tests)"
  started = now
}

line ~ /^running [0-9]+ tests? in machines/ {
  program = "machines with Soft-RoCE"
  started = now
}

line ~ /^running [0-9]+ tests?/ {
  begin = now
}

line ~ /^test .* \.\.\. / {
  name = line
  sub(/^test /, "", name)
  sub(/ \.\.\. .*$/, "", name)
  # tests that run one after the other tell it themselves
  if (match(line, /\([0-9.]+ s\)/)) {
    say("test", substr(line, RSTART + 1, RLENGTH - 4), program "  " name)
  } else {
    ended[++tests] = name
    end[name] = now
  }
}

line ~ /^test result:/ {
  end_of_program()
  total[program] += now - started
  started = now
}

END {
  for (program in total) say("program", total[program], program)
}
