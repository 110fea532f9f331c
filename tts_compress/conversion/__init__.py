"""What calibration, conversion and manifests of graphs and modules share."""
