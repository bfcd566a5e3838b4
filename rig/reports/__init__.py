"""Report formats, one file each: `write(report, folder)` writes or prints what `rig.digest` returns."""
