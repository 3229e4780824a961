"""pgqueue in frameworks. Each module needs its framework; no other part of pgqueue needs it."""
