// SPDX-License-Identifier: Apache-2.0
//! Shares host memory through the C interface, and shows an error:
//!
//!   share [SOCKET]      default: $GPUSHM_SOCKET
mod gpushm;

use gpushm::{Client, Result};

fn share(socket: &str) -> Result<()> {
    let bytes = b"hello from Rust";
    let producer = Client::connect(socket, 10_000)?;
    let created = producer.create("rust/table", 4096, "host")?;
    created.write(0, bytes)?;
    created.publish(b"version 1")?; // visible from here on

    let consumer = Client::connect(socket, 10_000)?; // in any process, container or pod
    let opened = consumer.open("rust/table", 10_000)?;
    let mut copy = vec![0; bytes.len()];
    opened.read(0, &mut copy)?;
    println!(
        "{}, {}: {} bytes, they begin with \"{}\"",
        opened.name(),
        String::from_utf8_lossy(&opened.metadata()?),
        opened.size_bytes(),
        String::from_utf8_lossy(&copy)
    );

    if let Err(error) = consumer.open("rust/tables", 0) {
        println!("{}", error);
        println!("code:      {}", error.name());
        println!("cause:     {}", error.cause());
        println!("next step: {}", error.next_step());
    }
    Ok(())
} // segments, leases and connections are closed here

fn main() {
    let socket = std::env::args().nth(1).unwrap_or_default();
    if let Err(error) = share(&socket) {
        eprintln!("share: {}", error);
        std::process::exit(1);
    }
}
