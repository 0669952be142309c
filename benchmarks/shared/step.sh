# Sourced: `step NAME COMMAND …` runs one step of a measurement, at most LIMIT seconds (150), unless it is done already.
# What it printed, its time and exit status are in $out/NAME.txt; a step that failed stops no other.
step() {
  name=$1
  shift
  grep -qs "^exit status 0" "$out/$name.txt" && return # done before
  echo "\$ $*" > "$out/$name.txt"
  { time timeout "${LIMIT:-150}" "$@"; } >> "$out/$name.txt" 2>&1
  echo "exit status $?" >> "$out/$name.txt"
}
