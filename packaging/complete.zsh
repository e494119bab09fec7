# Prints what a real zsh makes of each argument and a tab. The directory of
# _millrace comes first; millrace is on PATH.
zmodload zsh/zpty
# said prints what the shell has shown since, once it shows nothing more.
said() {
  local part all= quiet=0
  while ((quiet < 15)); do
    if zpty -rt z part; then all+=$part quiet=0; else sleep 0.1; ((++quiet)); fi
  done
  print -r -- "$all"
}
zpty z zsh -f -i
zpty -w z "fpath=(${(q)1} \$fpath); autoload -U compinit; compinit -u -D"
said >/dev/null
shift
for line; do
  zpty -wn z "$line"$'\t'
  said
  zpty -wn z $'\x15'
  said >/dev/null
done
