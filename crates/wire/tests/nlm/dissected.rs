//! What tshark reads in a message, by the names of the specification.

use judge::tshark::DissectedMessage;

/// Names of tshark, and what the specification calls the same.
const NAMES: &[(&str, &str)] = &[
    ("nlm.cookie", "cookie"),
    ("nlm.block", "block"),
    ("nlm.exclusive", "exclusive"),
    ("nlm.lock.caller_name", "caller_name"),
    ("nfs.fhandle", "fh"),
    ("nlm.lock.owner", "oh"),
    ("nlm.lock.svid", "svid"),
    ("nlm.lock.l_offset", "l_offset"),
    ("nlm.lock.l_offset64", "l_offset"),
    ("nlm.lock.l_len", "l_len"),
    ("nlm.lock.l_len64", "l_len"),
    ("nlm.reclaim", "reclaim"),
    ("nlm.state", "state"),
    ("nlm.stat", "stat"),
    ("nlm.test_stat.stat", "stat"),
    ("nlm.share.mode", "mode"),
    ("nlm.share.access", "access"),
    ("nlm.share.name", "name"),
    ("nlm.sequence", "sequence"),
    ("stat.name", "mon_name"),
    ("stat.mon_id.name", "mon_name"),
    ("stat.my_id.hostname", "my_name"),
    ("stat.my_id.prog", "my_prog"),
    ("stat.my_id.vers", "my_vers"),
    ("stat.my_id.proc", "my_proc"),
    ("stat.priv", "priv"),
    ("stat.state", "state"),
    ("stat.stat_res.state", "state"),
    ("stat.stat_res.res", "res_stat"),
    ("statnotify.name", "mon_name"),
    ("statnotify.state", "state"),
    ("statnotify.priv", "priv"),
];

/// What lies between the fields, and belongs to none.
const NOT_FIELDS: &[&str] = &[
    "nlm.lock",
    "nlm.holder",
    "nlm.share",
    "nlm.test_stat",
    "nfs.fh.length",
    "nfs.fh.hash",
    "stat.mon",
    "stat.my_id",
    "stat.stat_res",
    "stat.stat_chge",
];

/// `name=hex` of every field that has bytes, sorted.
pub(crate) fn read(message: &DissectedMessage) -> Vec<String> {
    let mut fields: Vec<String> = message
        .fields
        .iter()
        .filter(|field| !field.name.starts_with("rpc.") && !field.name.contains(".procedure_v"))
        .filter(|field| !NOT_FIELDS.contains(&&field.name[..]) && !field.hex.is_empty())
        .map(|field| {
            let known = NAMES.iter().find(|(theirs, _)| *theirs == field.name);
            let (_, ours) = known.unwrap_or_else(|| panic!("{} is unknown", field.name));
            format!("{ours}={}", field.hex)
        })
        .collect();
    fields.sort();
    fields
}

/// The same of a value: numbers become words, and those of a range two words in version 4.
pub(crate) fn expected(fields: &[String], version: u32) -> Vec<String> {
    const BYTES: &[&str] =
        &["cookie", "caller_name", "fh", "oh", "name", "mon_name", "my_name", "priv"];
    // tshark skips the state in a failed reply.
    let failed = fields.iter().any(|field| field == "res_stat=1");
    let mut fields: Vec<String> = fields
        .iter()
        .map(|field| field.split_once('=').unwrap())
        .filter(|(_, value)| !value.is_empty())
        .filter(|(name, _)| !(*name == "state" && failed))
        .map(|(name, value)| match name {
            _ if BYTES.contains(&name) => format!("{name}={value}"),
            "l_offset" | "l_len" if version == 4 => {
                format!("{name}={:016x}", value.parse::<u64>().unwrap())
            }
            _ => format!("{name}={:08x}", value.parse::<i64>().unwrap() as u32),
        })
        .collect();
    fields.sort();
    fields
}
