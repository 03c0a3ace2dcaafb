"""Studies: measurements that anybody can repeat, with their recorded result beside the code (`rlhf study`)."""
