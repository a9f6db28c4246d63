"""What Clew costs, as ratios: beside the least that durability can cost, and beside its peers. `python -m bench`."""
